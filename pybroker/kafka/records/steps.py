"""Long conversions in steps of a few milliseconds, after each of which other work may run.

A RecordBatch of ten kilobytes may have a million records, or decompress to 64 MiB.
"""

from collections.abc import Generator
from typing import Final, TypeVar

from pybroker.base.runtime import Pace

RECORDS_A_STEP: Final = 500

T = TypeVar("T")
Steps = Generator[None, None, T]


class Budget:
    """Steps that may be taken in one turn of the loop."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps


def at_once(steps: Steps[T]) -> T:
    """However long it takes: for tests and tools."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def within(budget: Budget, steps: Steps[T]) -> T | None:
    """None if it would take more than the budget."""
    while budget.left > 0:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        budget.left -= 1
    steps.close()
    return None


async def in_turns(steps: Steps[T]) -> T:
    """One step in each turn of the loop."""
    pace = Pace(1)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await pace.step()
