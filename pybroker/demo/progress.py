"""Shows the progress of long work: a bar on a terminal, plain lines in files and pipes."""

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

_BAR_COLUMNS: Final = 30
_STEPS_WITHOUT_TERMINAL: Final = 4
_LINE_EVERY_S: Final = 15.0


class ProgressBar:
    """Shows `done` of `total`: on a terminal one line that is redrawn, elsewhere new lines.

    A new line comes at each quarter, and after 15 seconds without a line if more was done.
    """

    def __init__(
        self,
        what: str,
        total: int,
        stream: TextIO | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._total = total
        self._stream = sys.stdout if stream is None else stream
        self._redraws = self._stream.isatty()
        self._now_s = now_s
        self._shown = -1  # the last step shown
        self._written = 0  # the value of `done` in the last line
        self._written_at_s = 0.0
        self._line_is_open = False

    def show(self, done: int) -> None:
        steps = _BAR_COLUMNS if self._redraws else _STEPS_WITHOUT_TERMINAL
        step = done * steps // self._total
        if self._redraws:
            bar = "█" * step + "·" * (_BAR_COLUMNS - step)
            self._write(f"\r\x1b[K  {bar} {done:,} of {self._total:,} {self._what}")
            self._line_is_open = True
        elif step > self._shown or (done > self._written and self._is_time_for_a_line()):
            self._write(f"  {done:,} of {self._total:,} {self._what}\n")
            self._written, self._written_at_s = done, self._now_s()
        self._shown = step

    def _is_time_for_a_line(self) -> bool:
        return self._now_s() - self._written_at_s >= _LINE_EVERY_S

    def interrupt(self) -> None:
        """Ends the current line, so that other text can follow."""
        if self._line_is_open:
            self._write("\n")
            self._line_is_open = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
