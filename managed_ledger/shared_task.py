"""Work with several waiters: each awaits it through asyncio.shield, so cancelling one waiter does
not stop the work.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def shared_task(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A task whose failure goes to the waiters; nothing is logged if all of them were cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_heard)
    return task


def _heard(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
