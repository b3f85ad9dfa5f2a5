"""How many times records were handed out of batches of which a member was not given all.

The dispatcher counts the deliveries of entries. With share.acquire.mode=record_limit (KIP-1206) a
member may be given the first records of a batch, and die: the others were never handed out, and a
batch that is given up must not take them with it.
"""

from collections.abc import Iterator
from typing import Final

from managed_ledger.position import Position
from pybroker.kafka.shares.acquired import AcquiredEntry

_MOST_BYTES: Final = 1024 * 1024  # of one group on one partition; then the oldest are forgotten


class HandedOut:
    """Of one group on one partition. In memory, like the counts of the dispatcher."""

    def __init__(self) -> None:
        # The bitset number n has the indexes that came back more than n times.
        self._batches: dict[Position, list[int]] = {}
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def came_back(self, entry: AcquiredEntry, limit: int) -> None:
        """Call when the entry is given back, counted. `limit`: of deliveries."""
        before = self._batches.pop(entry.position, None)
        if before is None:
            if not entry.waiting:
                return  # the dispatcher's count is that of all its records
            before = [entry.unacked] * min(entry.delivery_count - 1, limit)
        else:
            self._size_bytes -= _size_of(before)
        counts = _raised(before, entry.unacked & ~entry.waiting, limit)
        self._batches[entry.position] = counts
        self._size_bytes += _size_of(counts)
        while self._size_bytes > _MOST_BYTES:
            self.forget(next(iter(self._batches)))

    def forget(self, position: Position) -> None:
        """Call when the whole entry is acknowledged."""
        if (counts := self._batches.pop(position, None)) is not None:
            self._size_bytes -= _size_of(counts)

    def clear(self) -> None:
        self._batches.clear()
        self._size_bytes = 0

    def too_often(self, entry: AcquiredEntry, limit: int) -> int:
        """The unacknowledged indexes that were handed out `limit` times."""
        counts = self._batches.get(entry.position)
        if counts is None:
            return entry.unacked if entry.delivery_count > limit else 0
        return counts[limit - 1] & entry.unacked if len(counts) >= limit else 0

    def by_count(self, entry: AcquiredEntry, bits: int) -> Iterator[tuple[int, int]]:
        """`bits` by the number of the delivery, the present one included: (number, bits)."""
        counts = self._batches.get(entry.position)
        if counts is None:
            yield entry.delivery_count, bits
            return
        for number, more in enumerate([*counts, 0], start=1):
            if found := bits & ~more:
                yield number, found
            bits &= more


def _raised(counts: list[int], bits: int, limit: int) -> list[int]:
    raised = [bits, *(each & bits for each in counts)]
    found = [old | new for old, new in zip([*counts, 0], raised, strict=True)]
    return [each for each in found if each][:limit]


def _size_of(counts: list[int]) -> int:
    return 100 + sum(each.bit_length() // 8 for each in counts)
