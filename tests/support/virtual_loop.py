"""An event loop whose time passes only while all tasks wait: an hour takes no time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualSelector(selectors.SelectSelector):
    """Advances the loop's time instead of waiting for the network."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits for ever"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now_s


class LoopClock:
    """A clock with a settable wall time; its monotonic time is the loop's."""

    wall_offset_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.wall_offset_ms + int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtually(scenario: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)
