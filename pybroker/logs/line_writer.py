"""Writes lines in a thread of its own, because the reader may be slow or not read at all.

Otherwise a full pipe would stop the event loop, and with it all messages. The queue is bounded:
further lines are dropped, and their number is logged once there is room again.
"""

import os
import threading
from collections import deque
from contextlib import suppress
from typing import Final

MOST_WAITING_BYTES: Final = 4 * 1024 * 1024
DRAIN_S: Final = 2.0  # time for the reader at the end of the process


class LineWriter:
    """A text stream for logging: `write` never waits."""

    def __init__(self, descriptor: int, most_waiting_bytes: int = MOST_WAITING_BYTES) -> None:
        self._descriptor = descriptor
        self._most_waiting_bytes = most_waiting_bytes
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._left_out = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if self._waiting_bytes + len(line) > self._most_waiting_bytes:
                self._left_out += 1
                return len(text)
            self._lines.append(line)
            self._waiting_bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Does nothing: logging flushes after each line. See `drain`."""

    def drain(self, limit_s: float = DRAIN_S) -> None:
        """Returns when all lines are written, but after `limit_s` at the latest."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting_bytes, limit_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._left_out)
                lines, left_out = b"".join(self._lines), self._left_out
                self._lines.clear()
                self._left_out = 0
            if left_out:
                lines += b"%d log lines were left out: they were not read in time\n" % left_out
            self._write(lines)
            with self._changed:
                self._waiting_bytes = sum(map(len, self._lines))
                self._changed.notify_all()

    def _write(self, lines: bytes) -> None:
        with suppress(OSError):  # the reader has closed the pipe
            while lines:
                lines = lines[os.write(self._descriptor, lines) :]
