"""AUTO_SPLIT without a ring: each consumer has one range of slots; a new one halves the widest.

Ranges end at keys, as Apache Pulsar's do: a slot belongs to the owner of the next key. A consumer
that leaves gives its range to the next neighbour, or to the previous one if it is the last.

Source: Apache Pulsar, HashRangeAutoSplitStickyKeyConsumerSelector.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

from pybroker.base.errors import ConsumerAssignError
from pybroker.broker.dispatch.entry_buckets import EntryBuckets
from pybroker.broker.dispatch.hash_ring import RING_SIZE, HashRing, StickyRanges
from pybroker.broker.subscriptions.consumer import Consumer, KeySharedMode, KeySharedPolicy


class SplitRanges:
    def __init__(self) -> None:
        self._keys: list[int] = []
        self._owners: list[Consumer] = []  # by key

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if no range can be split any more."""
        if not self._keys:
            self._keys, self._owners = [RING_SIZE], [consumer]
            return
        widths = [key - before for before, key in pairwise([0, *self._keys])]
        at = widths.index(max(widths))
        if widths[at] <= 1:
            raise ConsumerAssignError(
                f"No more range can assigned to new consumer, assigned consumers {len(self._keys)}"
            )
        self._keys.insert(at, self._keys[at] - (widths[at] >> 1))
        self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        at = self._owners.index(consumer)
        del self._owners[at]
        # For the last one, the key before it is removed, and that key's owner gets everything to
        # the end.
        del self._keys[at if at < len(self._owners) else max(0, at - 1)]

    def owner(self, slot: int) -> Consumer | None:
        return self._owners[bisect_left(self._keys, slot)] if self._keys else None

    def ranges(self) -> Iterator[tuple[int, int, Consumer]]:
        """Closed ranges of slots, in order."""
        start = 0
        for key, owner in zip(self._keys, self._owners, strict=True):
            yield start, min(key, RING_SIZE - 1), owner
            start = key + 1


Split = HashRing | SplitRanges | StickyRanges | EntryBuckets


def split_by(policy: KeySharedPolicy, consistent: bool) -> Split:
    """`consistent`: subscriptionKeySharedUseConsistentHashing."""
    if policy.violations is not None:
        return EntryBuckets(policy.violations)
    if policy.mode is KeySharedMode.STICKY:
        return StickyRanges()
    return HashRing() if consistent else SplitRanges()
