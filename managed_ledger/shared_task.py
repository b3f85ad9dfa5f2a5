"""Work with several waiters, each behind a shield: cancelling one does not stop the others."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def shared_task(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Its failure goes to the waiters, and is dropped if all of them were cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_heard)
    return task


def _heard(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
