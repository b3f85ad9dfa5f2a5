"""An executor with one thread, which runs blocking jobs in order.

Every commit goes through this thread. The hand-over of a thread pool, with two kinds of futures and
their locks, would cost more than the rest of a small commit. Here a job waits in a queue, and its
outcome goes straight to a future of the calling loop.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from managed_ledger.prompt import prompt
from managed_ledger.storage.operations import settle

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]
_Queue = SimpleQueue[_Job | None]


class OneThread(Executor):
    """For `loop.run_in_executor`, which returns the asyncio future of `submit` unchanged."""

    _max_workers = 1

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: _Queue = SimpleQueue()
        self._started = False
        self._ended = weakref.finalize(self, self._jobs.put, None)

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Call on the event loop. Named arguments are not supported."""
        assert not named
        if not self._ended.alive:
            raise RuntimeError(f"{self._name} accepts no work after shutdown")
        if not self._started:
            self._started = True
            threading.Thread(
                target=_work_off, args=(self._jobs,), name=self._name, daemon=True
            ).start()
        done = prompt()
        self._jobs.put((asyncio.get_running_loop(), done, work, args))
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Submitted jobs still run; `shutdown` does not wait for them."""
        assert not wait and not cancel_futures
        self._ended()


def _work_off(jobs: _Queue) -> None:
    while (job := jobs.get()) is not None:
        _work(*job)
        job = None  # the arguments may hold megabytes


def _work(
    loop: asyncio.AbstractEventLoop,
    done: "asyncio.Future[Any]",
    work: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    result, error = None, None
    try:
        result = work(*args)
    except Exception as raised:
        error = raised
    with suppress(RuntimeError):  # the loop is closed: there is no waiter
        loop.call_soon_threadsafe(settle, done, result, error)
