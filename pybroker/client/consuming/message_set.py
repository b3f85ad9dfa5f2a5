"""A set of one topic's messages: runs of consecutive entries, and parts of batches. Pure.

Positions between entries that were never messages (markers, for example) end a run.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pybroker.client.consuming.acks import NOTHING, EntryKey, Left, Place, all_bits

WHOLE: Final = -1  # as bits: the entry is one message
# A ledger's id, and its first and last entry.
Run = tuple[int, int, int]


def is_whole(batch_index: int, batch_size: int) -> bool:
    """Whether a message is an entry of its own."""
    return batch_index < 0 or batch_size <= 1


def _begin(run: Run) -> EntryKey:
    return run[0], run[1]


def _end(run: Run) -> EntryKey:
    return run[0], run[2]


class MessageSet:
    __slots__ = ("_parts", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []  # sorted, and apart from each other
        self._parts: dict[EntryKey, Left] = {}  # the messages of a batch as bits, and its size

    @classmethod
    def of(cls, places: Iterable[Place]) -> "MessageSet":
        found = cls()
        for ledger_id, entry_id, batch_index, batch_size in places:
            if is_whole(batch_index, batch_size):
                found.add_run(ledger_id, entry_id, entry_id)
            else:
                found.add_part((ledger_id, entry_id), 1 << batch_index, batch_size)
        return found

    def __bool__(self) -> bool:
        return bool(self._runs or self._parts)

    @property
    def runs(self) -> Sequence[Run]:
        return self._runs

    @property
    def parts(self) -> Mapping[EntryKey, Left]:
        return self._parts

    @property
    def first(self) -> EntryKey:
        return min([*map(_begin, self._runs[:1]), *self._parts])

    @property
    def size(self) -> int:
        """The number of items that it needs memory for."""
        return len(self._runs) + len(self._parts)

    def bits_of(self, key: EntryKey) -> int:
        """The messages of an entry, as bits: 0 for none of them, WHOLE for an entry of its own."""
        if (part := self._parts.get(key)) is not None:
            return part[0]
        index = bisect_left(self._runs, key, key=_end)
        return WHOLE if index < len(self._runs) and _begin(self._runs[index]) <= key else 0

    def __contains__(self, place: Place) -> bool:
        bits = self.bits_of(place[:2])
        return bits == WHOLE or bool(bits >> max(0, place[2]) & 1)

    def add_run(self, ledger_id: int, first: int, last: int) -> bool:
        """Adds consecutive entries. False, and nothing added, if some are in the set already."""
        runs = self._runs
        if runs and (ledger_id, first) <= _end(runs[-1]):
            return self._insert(ledger_id, first, last)
        if runs and runs[-1][0] == ledger_id and runs[-1][2] + 1 == first:
            runs[-1] = (ledger_id, runs[-1][1], last)
        else:
            runs.append((ledger_id, first, last))
        return True

    def _insert(self, ledger_id: int, first: int, last: int) -> bool:
        runs = self._runs
        low = bisect_left(runs, (ledger_id, first), key=_end)
        if low < len(runs) and _begin(runs[low]) <= (ledger_id, last):
            return False
        high = low
        if low and _end(runs[low - 1]) == (ledger_id, first - 1):
            low, first = low - 1, runs[low - 1][1]
        if high < len(runs) and _begin(runs[high]) == (ledger_id, last + 1):
            high, last = high + 1, runs[high][2]
        runs[low:high] = [(ledger_id, first, last)]
        return True

    def add_part(self, key: EntryKey, bits: int, batch_size: int) -> None:
        known, size = self._parts.get(key, NOTHING)
        self._parts[key] = known | bits, max(size, batch_size)

    def add_all(self, other: "MessageSet") -> None:
        for run in other._runs:
            self._discard_run(*run)
            self.add_run(*run)
        for key, (bits, size) in other._parts.items():
            self.add_part(key, bits, size)

    def discard_all(self, other: "MessageSet") -> None:
        if self._runs:
            for run in other._runs:
                self._discard_run(*run)
        if self._parts:
            for key, (bits, _) in other._parts.items():
                self.discard_part(key, bits)

    def _discard_run(self, ledger_id: int, first: int, last: int) -> None:
        runs = self._runs
        low = bisect_left(runs, (ledger_id, first), key=_end)
        high = bisect_right(runs, (ledger_id, last), key=_begin)
        if low >= high:
            return
        begin, end = runs[low][1], runs[high - 1][2]
        left = []
        if begin < first:
            left.append((ledger_id, begin, first - 1))
        if last < end:
            left.append((ledger_id, last + 1, end))
        runs[low:high] = left

    def discard_part(self, key: EntryKey, bits: int) -> None:
        if key not in self._parts:
            return
        known, size = self._parts[key]
        if left := known & ~bits:
            self._parts[key] = left, size
        else:
            del self._parts[key]

    def both(self, other: "MessageSet") -> "MessageSet":
        """The messages that are in both sets."""
        others, found = self.copy(), self.copy()
        others.discard_all(other)
        found.discard_all(others)
        return found

    def copy(self) -> "MessageSet":
        copy = MessageSet()
        copy._runs, copy._parts = self._runs.copy(), self._parts.copy()
        return copy

    def up_to(self, place: Place) -> "MessageSet":
        """The messages at or before this one."""
        found, key = MessageSet(), place[:2]
        last = bisect_right(self._runs, key, key=_begin)
        found._runs = self._runs[:last]
        if last and _end(found._runs[-1]) > key:
            found._runs[-1] = (key[0], found._runs[-1][1], key[1])
        for other, (bits, size) in self._parts.items():
            within = bits
            if other == key and place[2] >= 0:
                within &= all_bits(place[2] + 1)
            if other <= key and within:
                found._parts[other] = within, size
        return found

    def forget_first(self) -> None:
        """Drops one of the items, the first of their kind."""
        if self._runs:
            del self._runs[0]
        else:
            del self._parts[next(iter(self._parts))]
