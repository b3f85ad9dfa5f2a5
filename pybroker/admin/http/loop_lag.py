"""How long the event loop was held up: what every client of the broker would have waited for."""

import asyncio
from typing import Final

_INTERVAL_S: Final = 0.02


class LoopLag:
    """Looks every 20 ms how late it is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worst_s = 0.0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle
        self._wait()

    def worst_s(self) -> float:
        """The longest since this was last asked."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    def _wait(self) -> None:
        self._due_s = self._loop.time() + _INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        self._worst_s = max(self._worst_s, self._loop.time() - self._due_s)
        self._wait()

    def close(self) -> None:
        self._timer.cancel()
