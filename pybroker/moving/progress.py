"""Shows the progress of a move: in one line on a terminal, otherwise in a new line now and then."""

import time
from typing import Final, TextIO

TERMINAL_S: Final = 0.2
LINES_S: Final = 10.0
_MB: Final = 1_000_000


class Progress:
    """Bytes count twice, because they are read twice: to copy them, and to verify the copy."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._is_terminal = out is not None and out.isatty()
        self._began_s = self._told_s = time.monotonic()
        self._ledgers = self._all_ledgers = 0
        self._bytes = self._all_bytes = 0

    def begin(self, ledgers: int, size_bytes: int) -> None:
        self._all_ledgers, self._all_bytes = ledgers, 2 * size_bytes
        self._began_s = self._told_s = time.monotonic()

    def bytes_done(self, size: int) -> None:
        self._bytes += size
        self._tell_if_due()

    def ledger_done(self, size_bytes: int = 0) -> None:
        """`size_bytes`: the part that an earlier attempt had copied and verified."""
        self._ledgers += 1
        self._all_bytes -= 2 * size_bytes
        self._tell_if_due()

    def end(self) -> None:
        if self._out is not None and self._is_terminal:
            print("\r\x1b[K", end="", file=self._out, flush=True)

    def __str__(self) -> str:
        took_s = time.monotonic() - self._began_s
        share = self._bytes / self._all_bytes if self._all_bytes > 0 else 1.0
        text = f"{self._ledgers} of {self._all_ledgers} ledgers"
        text += f", {self._bytes / 2 / _MB:,.0f} of {max(0, self._all_bytes) / 2 / _MB:,.0f} MB"
        if took_s > 1 and self._bytes:
            left_s = max(0.0, took_s / max(share, 1e-9) - took_s)
            text += f", {self._bytes / 2 / _MB / took_s:,.1f} MB/s, {_duration(left_s)} left"
        return text

    def _tell_if_due(self) -> None:
        if self._out is None:
            return
        now_s = time.monotonic()
        if now_s - self._told_s < (TERMINAL_S if self._is_terminal else LINES_S):
            return
        self._told_s = now_s
        if self._is_terminal:
            print(f"\r\x1b[K{self}", end="", file=self._out, flush=True)
        else:
            print(self, file=self._out, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
