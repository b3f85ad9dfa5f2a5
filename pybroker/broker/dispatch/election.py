"""Elects the active consumer of an Exclusive or Failover subscription, which gets everything.

It is the first by priority level, then by name. On partition n of a partitioned topic it is the
n-th consumer of the best level instead, so that partitions spread over the consumers.
"""

from pybroker.broker.consumer import Consumer


class Election:
    def __init__(self, failover: bool, partition: int) -> None:
        """`partition` is -1 for a topic that is not a partition."""
        self.active: Consumer | None = None
        self._failover = failover
        self._partition = max(0, partition)
        self._consumers: list[Consumer] = []

    def add(self, consumer: Consumer) -> bool:
        """True if the active consumer has changed."""
        self._consumers.append(consumer)
        changed = self._elect()
        if not changed:
            self._tell(consumer)
        return changed

    def remove(self, consumer: Consumer) -> bool:
        """True if the active consumer has changed."""
        self._consumers.remove(consumer)
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
        if not self._consumers:
            return None
        best = min(consumer.priority_level for consumer in self._consumers)
        ranked = sorted(
            (consumer for consumer in self._consumers if consumer.priority_level == best),
            key=lambda consumer: consumer.rank,
        )
        return ranked[self._partition % len(ranked)]

    def _tell(self, consumer: Consumer) -> None:
        if self._failover:
            consumer.sink.active_consumer_changed(consumer, consumer is self.active)
