"""An event loop whose time passes only while everybody waits: an hour takes no time."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__()

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        scheduled = self._scheduled  # type: ignore[attr-defined]
        if not self._ready and scheduled:  # type: ignore[attr-defined]
            self._now_s = max(self._now_s, scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """A Clock that shows the running loop's time."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtually(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario)
