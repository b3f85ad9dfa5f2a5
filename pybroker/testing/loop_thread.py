"""An event loop in its own thread, for synchronous callers."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class LoopThread:
    def __init__(self, name: str, new_loop: NewLoop = asyncio.new_event_loop) -> None:
        self._new_loop = new_loop
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the coroutine on the loop; returns its result or raises its error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Cancels what is still running, and ends the thread."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._started.set()
        await self._closed.wait()
