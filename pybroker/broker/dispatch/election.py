"""Elects the active consumer of an Exclusive or Failover subscription, which gets everything.

It is the first by priority level, then by name. On partition n of a partitioned topic it is the
n-th consumer of the best level instead, so that partitions spread over the consumers.
"""

from sortedcontainers import SortedKeyList

from pybroker.broker.subscriptions.consumer import Consumer


def _order(consumer: Consumer) -> tuple[int, tuple[str, int, int]]:
    return consumer.priority_level, consumer.rank


class Election:
    def __init__(self, failover: bool, partition: int) -> None:
        """`partition` is -1 for a topic that is not a partition."""
        self.active: Consumer | None = None
        self._failover = failover
        self._partition = max(0, partition)
        self._consumers: dict[Consumer, None] = {}  # by age
        self._ranked: SortedKeyList[Consumer] = SortedKeyList(key=_order)

    def add(self, consumer: Consumer) -> bool:
        """True if the active consumer has changed."""
        self._consumers[consumer] = None
        self._ranked.add(consumer)
        changed = self._elect()
        if not changed:
            self._tell(consumer)
        return changed

    def remove(self, consumer: Consumer) -> bool:
        """True if the active consumer has changed."""
        del self._consumers[consumer]
        self._ranked.remove(consumer)
        return self._elect()

    def _elect(self) -> bool:
        chosen = self._first_by_rank()
        if chosen is self.active:
            return False
        self.active = chosen
        for consumer in self._consumers:
            self._tell(consumer)
        return True

    def _first_by_rank(self) -> Consumer | None:
        if not self._ranked:
            return None
        best = self._ranked[0].priority_level
        count = self._ranked.bisect_key_left((best + 1,))
        chosen: Consumer = self._ranked[self._partition % count]
        return chosen

    def _tell(self, consumer: Consumer) -> None:
        if self._failover:
            consumer.sink.active_consumer_changed(consumer, consumer is self.active)
