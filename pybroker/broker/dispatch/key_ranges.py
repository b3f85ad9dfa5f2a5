"""The key ranges that an Exclusive consumer, or a reader, asked for.

Messages outside the ranges are passed over and not acknowledged, as in Apache Pulsar: they stay in
the subscription's backlog, for a consumer with other ranges. A cumulative acknowledgement covers
them like everything else before it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.hash_ring import RING_SIZE, StickyRanges
from pybroker.broker.dispatch.key_shared import slot_of_entry
from pybroker.broker.subscriptions.consumer import Consumer

# Messages to examine at least, because few of them may be in the ranges.
LOOK_AHEAD: Final = 100


class KeyRanges:
    def __init__(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if its ranges are invalid."""
        self._slots = StickyRanges()
        self._slots.add(consumer)

    def inside(self, entries: Sequence[bytes]) -> list[int]:
        """Indexes of the entries to deliver. A batch has one key: that of its first message."""
        owner = self._slots.owner
        return [at for at, entry in enumerate(entries) if owner(slot_of_entry(entry)) is not None]

    def split(self, delivery: Delivery, permits: int) -> tuple[Delivery, Delivery]:
        """The entries inside the ranges for which `permits` suffice, and all entries that the
        reader can pass with them.
        """
        inside = self.inside(delivery.entries)
        wanted = delivery.pick(inside)
        taken = wanted.part(0, wanted.affordable(permits))
        count = len(taken.entries)
        done = len(delivery.entries) if count == len(inside) else inside[count - 1] + 1
        return taken, delivery.part(0, done)


def ranges_of(consumer: Consumer | None) -> KeyRanges | None:
    """The consumer's key ranges; None if it gets every key. Raises ConsumerAssignError if they are
    invalid.
    """
    policy = None if consumer is None else consumer.request.key_shared
    if consumer is None or policy is None or not policy.ranges:
        return None
    ranges = KeyRanges(consumer)
    return None if _are_everything(sorted(policy.ranges)) else ranges


def _are_everything(ranges: Sequence[tuple[int, int]]) -> bool:
    """`ranges` are in order and do not overlap."""
    ends = ranges[0][0] == 0 and ranges[-1][1] == RING_SIZE - 1
    return ends and all(start == end + 1 for (_, end), (start, _) in pairwise(ranges))
