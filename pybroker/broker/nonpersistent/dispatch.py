"""Dispatch of non-persistent messages: `offer` delivers what can be delivered at once.

The rest is dropped, as in Apache Pulsar: a consumer without permits, or with a busy connection,
misses messages and delays no other consumer.
"""

from collections.abc import Iterable

from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.election import Election
from pybroker.broker.dispatch.hash_ring import check_same_mode
from pybroker.broker.dispatch.key_ranges import KeyRanges, ranges_of
from pybroker.broker.dispatch.key_shared import slot_of_entry
from pybroker.broker.dispatch.shared import PriorityLevels
from pybroker.broker.dispatch.split_ranges import split_by
from pybroker.broker.subscriptions.consumer import Consumer, KeySharedPolicy, SubscriptionType


def _give(consumer: Consumer, delivery: Delivery) -> int:
    """Delivers the first entries, as many as the consumer accepts; returns their number."""
    if consumer.permits <= 0 or not consumer.sink.writable or not delivery.entries:
        return 0
    taken = delivery.part(0, delivery.affordable(consumer.permits))
    consumer.deliver(taken)
    return len(taken.entries)


class SingleActive:
    """Exclusive and Failover."""

    def __init__(self, failover: bool, partition: int) -> None:
        self._failover = failover
        self._election = Election(failover, partition)
        self._ranges: KeyRanges | None = None  # of an Exclusive consumer

    @property
    def active(self) -> Consumer | None:
        return self._election.active

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError for unusable key ranges. Failover ignores all ranges."""
        self._ranges = None if self._failover else ranges_of(consumer)
        self._election.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._election.remove(consumer)

    def offer(self, delivery: Delivery) -> int:
        """The number of messages that no consumer took.

        Differs: Apache Pulsar ignores key ranges on non-persistent topics. Here a message outside
        them is not for this consumer, so it is not counted as dropped.
        """
        if self._ranges is not None:
            delivery = delivery.pick(self._ranges.inside(delivery.entries))
        given = 0 if self.active is None else _give(self.active, delivery)
        return sum(delivery.message_counts[given:])


class Shared:
    """In turn, to consumers of the best priority level that can take messages."""

    def __init__(self) -> None:
        self._levels = PriorityLevels()

    def add(self, consumer: Consumer) -> None:
        self._levels.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._levels.remove(consumer)

    def offer(self, delivery: Delivery) -> int:
        """The number of messages that no consumer took."""
        start = 0
        while start < len(delivery.entries) and (ready := self._ready()):
            share = -(-(len(delivery.entries) - start) // len(ready))
            for consumer in ready:
                start += _give(consumer, delivery.part(start, start + share))
        return sum(delivery.message_counts[start:])

    def _ready(self) -> list[Consumer]:
        """The ready consumers, the next in turn first; then the turn passes on."""
        for level in self._levels.values():
            ready = [each for each in level if each.permits > 0 and each.sink.writable]
            if ready:
                level.rotate(-1)
                return ready
        return []


class KeyShared:
    """Each message goes to the owner of its key, if there is one."""

    def __init__(self, policy: KeySharedPolicy | None, consistent: bool) -> None:
        self.policy = policy or KeySharedPolicy()
        self._ring = split_by(self.policy, consistent)

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if its mode differs from the others', or its ranges overlap
        theirs.
        """
        check_same_mode(consumer, self.policy)
        self._ring.add(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._ring.remove(consumer)

    def offer(self, delivery: Delivery) -> int:
        """The number of messages that no consumer took."""
        owned: dict[Consumer, list[int]] = {}
        for index, entry in enumerate(delivery.entries):
            owner = self._ring.owner(slot_of_entry(entry))
            if owner is not None:
                owned.setdefault(owner, []).append(index)
        taken = sum(self._give_own(owner, delivery.pick(at)) for owner, at in owned.items())
        return sum(delivery.message_counts) - taken

    def _give_own(self, owner: Consumer, delivery: Delivery) -> int:
        return sum(delivery.message_counts[: _give(owner, delivery)])

    def ranges(self) -> Iterable[tuple[int, int, Consumer]]:
        return self._ring.ranges()


Dispatcher = SingleActive | Shared | KeyShared


def dispatcher_of(
    kind: SubscriptionType, first: Consumer, partition: int, consistent: bool
) -> Dispatcher:
    if kind.single_active:
        return SingleActive(kind is SubscriptionType.FAILOVER, partition)
    if kind is SubscriptionType.SHARED:
        return Shared()
    return KeyShared(first.request.key_shared, consistent)
