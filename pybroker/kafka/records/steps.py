"""Long conversions in steps of a few milliseconds, after each of which other work may run.

A RecordBatch of ten kilobytes may have a million records, or decompress to 64 MiB. What cannot be
divided, such as compressing one large record, is a step that a thread takes: see `apart`.
"""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from pybroker.base.runtime import Pace

RECORDS_A_STEP: Final = 500
LARGE_BYTES: Final = 1024 * 1024

T = TypeVar("T")
_Result = TypeVar("_Result")


class _Outcome(NamedTuple):
    result: Any
    error: Exception | None


# A step is taken by whoever goes on; or it yields work for a thread, and is sent the outcome.
Steps = Generator[Callable[[], _Outcome] | None, _Outcome | None, T]


def apart(size_bytes: int, work: Callable[[], _Result]) -> Steps[_Result]:
    """The result of `work`, which takes milliseconds for each MiB of `size_bytes`: more than one is
    for a thread. Most libraries let others work meanwhile. Raises what `work` raises.
    """
    if size_bytes <= LARGE_BYTES:
        return work()
    outcome = yield partial(_tried, work)
    assert outcome is not None
    if outcome.error is not None:
        raise outcome.error
    result: _Result = outcome.result
    return result


def _tried(work: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(work(), None)
    except Exception as error:
        return _Outcome(None, error)


class Budget:
    """Steps that may be taken in one turn of the loop."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps


def at_once(steps: Steps[T]) -> T:
    """However long it takes: for tests and tools."""
    outcome: _Outcome | None = None
    while True:
        try:
            work = steps.send(outcome)
        except StopIteration as end:
            found: T = end.value
            return found
        outcome = None if work is None else work()


def within(budget: Budget, steps: Steps[T]) -> T | None:
    """None if it would take more than the budget, or a thread."""
    while budget.left > 0:
        try:
            work = next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        if work is not None:
            break
        budget.left -= 1
    steps.close()
    return None


async def in_turns(steps: Steps[T]) -> T:
    """One step in each turn of the loop."""
    pace, outcome = Pace(1), None
    while True:
        try:
            work = steps.send(outcome)
        except StopIteration as end:
            found: T = end.value
            return found
        outcome = None
        if work is not None:
            outcome = await asyncio.get_running_loop().run_in_executor(None, work)
        await pace.step()
