"""Requests that name a hundred thousand things: other work runs while they are looked at."""

from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

from pybroker.base.runtime import Pace

_A_TURN: Final = 50

T = TypeVar("T")


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, some dozens in each turn of the loop. Few of them cost no turn."""
    pace = Pace(_A_TURN)
    for each in items:
        yield each
        await pace.step()
