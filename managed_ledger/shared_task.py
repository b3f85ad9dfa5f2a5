"""Work that several wait for, each behind a shield: who gives up stops it for nobody else."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def shared_task(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Its failure is news for who waits, and for nobody once all of them have given up."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_heard)
    return task


def _heard(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
