"""Converted entries, kept for the next reader: the last ones in each direction.

What takes longer than a few milliseconds is converted in steps, between which other work runs; a
thread takes what cannot be divided.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

from pybroker.kafka.conversion.entries import batch_start
from pybroker.kafka.conversion.to_kafka import for_kafka
from pybroker.kafka.conversion.to_pulsar import for_pulsar
from pybroker.kafka.records.steps import Budget, Steps, in_turns, within

MOST_BYTES: Final = 16 * 1024 * 1024  # of the entries before and after
_OVERHEAD_BYTES: Final = 300  # of an entry of the table
_STEPS_AT_ONCE: Final = 40  # 20,000 records
_LONG_ONES_AT_ONCE: Final = 2
_ROOM: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()

Key = tuple[Any, ...]  # an entry, and what else its conversion depends on


class Converted:
    def __init__(self, convert: Callable[..., Steps[bytes]], most_bytes: int) -> None:
        self._convert = convert
        self._most_bytes = most_bytes
        self._kept: OrderedDict[Key, bytes] = OrderedDict()
        self.size_bytes = 0

    def within(self, budget: Budget, *key: Any) -> bytes | None:
        """None if it would take more than the budget."""
        found = self._known(key)
        if found is None and (found := within(budget, self._convert(*key))) is not None:
            self._keep(key, found)
        return found

    async def of(self, *key: Any) -> bytes:
        if (at_once := self.within(Budget(1), *key)) is not None:
            return at_once
        async with _room_for_long_ones():
            if (found := self._known(key)) is None:
                found = await in_turns(self._convert(*key))
        self._keep(key, found)
        return found

    def _known(self, key: Key) -> bytes | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def _keep(self, key: Key, found: bytes) -> None:
        if key in self._kept:
            return  # two readers converted it at the same time
        self._kept[key] = found
        self.size_bytes += _size(key, found)
        while self.size_bytes > self._most_bytes:
            self.size_bytes -= _size(*self._kept.popitem(last=False))


def _room_for_long_ones() -> asyncio.Semaphore:
    """Each of them may take some 64 MiB several times."""
    return _ROOM.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_LONG_ONES_AT_ONCE))


def _size(key: Key, found: bytes) -> int:
    return len(key[0]) + len(found) + _OVERHEAD_BYTES


# One limit for all topics.
FOR_PULSAR: Final = Converted(for_pulsar, MOST_BYTES)
FOR_KAFKA: Final = Converted(for_kafka, MOST_BYTES)


def first_for_pulsar(entries: Iterable[bytes]) -> list[bytes]:
    """As many of the entries, from the first one on, as are converted in a few milliseconds."""
    budget, found = Budget(_STEPS_AT_ONCE), []
    for entry in entries:
        shown = FOR_PULSAR.within(budget, entry) if batch_start(entry) else entry
        if shown is None:
            break
        found.append(shown)
    return found


async def all_for_pulsar(entries: Iterable[bytes]) -> list[bytes]:
    return [await FOR_PULSAR.of(entry) if batch_start(entry) else entry for entry in entries]
