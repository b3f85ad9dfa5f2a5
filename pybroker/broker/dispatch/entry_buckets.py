"""Entry buckets: whole entries go to the consumer that has the bucket of their keys' hashes.

Several stream consumers share a segment so: Key_Shared and STICKY, and each names all buckets of
the segment. They are divided anew whenever a consumer comes or goes, by the consumers' names. The
slot of an entry is the first hash of its bucket: so a bucket that moves waits as a whole until its
former owner has acknowledged what it holds.

Producers of the V5 SDK stamp each entry with the range of its keys' hashes. Without a stamp, the
key counts: that is right for an entry of one message. Source: PIP-486.
"""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from pybroker.base.errors import ConsumerAssignError
from pybroker.broker.dispatch.hash_ring import RING_SIZE, slot_of
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.wire.message_metadata import BadEntry, has_sticky_key, parse_metadata, sticky_key

# Reasons why the order of an entry's keys cannot be kept.
UNSTAMPED_BATCH: Final = "unstamped_batch"
SEVERAL_BUCKETS: Final = "several_buckets"


class EntryBuckets:
    def __init__(self, violations: Counter[str]) -> None:
        self._violations = violations
        self._ranges: tuple[tuple[int, int], ...] = ()
        self._starts: list[int] = []
        self._consumers: list[Consumer] = []  # in the order in which they get buckets

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if the ranges are not buckets, or not those of the others."""
        policy = consumer.request.key_shared
        ranges = () if policy is None else policy.ranges
        if not self._ranges:
            _check(consumer, ranges)
            self._ranges, self._starts = ranges, [start for start, _ in ranges]
        elif ranges != self._ranges:
            raise ConsumerAssignError(
                f"Consumer {consumer.name} has {len(ranges)} entry buckets, and the connected "
                f"consumers have {len(self._ranges)} others: it knows an old layout"
            )
        insort(self._consumers, consumer, key=lambda each: each.rank)

    def remove(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)

    def owner(self, slot: int) -> Consumer | None:
        if not self._consumers:
            return None
        return self._consumers[self._owner_of(bisect_right(self._starts, slot) - 1)]

    def _owner_of(self, bucket: int) -> int:
        """Of m consumers and n buckets, consumer j has the buckets from j*n//m to (j+1)*n//m."""
        return ((bucket + 1) * len(self._consumers) - 1) // len(self._starts)

    def ranges(self) -> Iterator[tuple[int, int, Consumer]]:
        """Closed ranges of hashes, in order: the buckets of each consumer are neighbours."""
        count = len(self._consumers)
        for place, consumer in enumerate(self._consumers):
            first, end = (each * len(self._starts) // count for each in (place, place + 1))
            if first < end:
                yield self._ranges[first][0], self._ranges[end - 1][1], consumer

    def slot_of_entry(self, entry: bytes) -> int:
        """The first hash of its bucket."""
        least, most = self._hashes(entry)
        bucket = bisect_right(self._starts, least) - 1
        if most > self._ranges[bucket][1]:
            self._violations[SEVERAL_BUCKETS] += 1
        return self._starts[bucket]

    def _hashes(self, entry: bytes) -> tuple[int, int]:
        try:
            metadata = parse_metadata(entry)
        except BadEntry:
            return 0, 0
        if metadata.HasField("entry_hash_min"):
            least = min(metadata.entry_hash_min, RING_SIZE - 1)
            return least, max(least, metadata.entry_hash_max)
        if metadata.HasField("num_messages_in_batch"):
            self._violations[UNSTAMPED_BATCH] += 1
        found = slot_of(sticky_key(metadata)) if has_sticky_key(metadata) else 0
        return found, found


def _check(consumer: Consumer, ranges: tuple[tuple[int, int], ...]) -> None:
    """Raises ConsumerAssignError unless the ranges follow each other, over all hashes."""
    bounds = [-1, *(end for _, end in ranges)]
    follow = all(start == before + 1 for (start, _), before in zip(ranges, bounds, strict=False))
    rise = all(before < end for before, end in pairwise(bounds))
    if not (ranges and follow and rise and bounds[-1] == RING_SIZE - 1):
        raise ConsumerAssignError(
            f"Consumer {consumer.name}: entry buckets must follow each other from 0 to "
            f"{RING_SIZE - 1}, without gaps: name all buckets of the segment"
        )
