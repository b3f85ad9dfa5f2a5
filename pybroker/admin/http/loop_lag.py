"""Measures how long the event loop was blocked, which delays every client of the broker."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 0.02


class LoopLag:
    """Measures every 20 ms how late its timer fires, in real time: tests may advance a loop's own
    time.
    """

    in_real_time = True

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worst_s: list[float] = []  # one for each reader
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle
        self._wait()

    def reader(self) -> Callable[[], float]:
        """A function that returns the longest delay since its own last call, in seconds."""
        index = len(self._worst_s)
        self._worst_s.append(0.0)

        def worst_s() -> float:
            found, self._worst_s[index] = self._worst_s[index], 0.0
            return found

        return worst_s

    def _wait(self) -> None:
        self._due_s = time.monotonic() + _INTERVAL_S
        self._timer = self._loop.call_later(_INTERVAL_S, self._look)

    def _look(self) -> None:
        late_s = time.monotonic() - self._due_s
        for index, worst_s in enumerate(self._worst_s):
            if late_s > worst_s:
                self._worst_s[index] = late_s
        self._wait()

    def close(self) -> None:
        self._timer.cancel()
