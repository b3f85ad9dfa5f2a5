"""Exclusive and Failover: one active consumer gets everything, in order.

The active one is the first by priority level, then by name; partition n of a partitioned topic
takes the n-th of the best level instead, so that partitions spread over the consumers. When another
one becomes active, reading starts again behind the mark-delete position.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from managed_ledger.position import Position
from pybroker.broker.consumer import Consumer
from pybroker.broker.dispatch.delivery import ROUND_BYTES, ROUND_STEPS, Delivery, by_ledger
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.redelivery import RedeliveryQueue


class SingleActiveDispatcher:
    def __init__(self, reader: EntryReader, failover: bool, partition: int) -> None:
        """`partition` is -1 for a topic that is not a partition."""
        self.active: Consumer | None = None
        self._reader = reader
        self._failover = failover
        self._partition = max(0, partition)
        self._consumers: list[Consumer] = []
        self._aborted = RedeliveryQueue(reader)

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)
        if not self._elect():
            self._tell(consumer)

    def remove(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)
        self._elect()

    def _elect(self) -> bool:
        """Choose the active consumer; True if it is another one than before."""
        chosen = self._first_by_rank()
        if chosen is self.active:
            return False
        self.active = chosen
        self.rewind()
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

    # -- delivering

    def dispatch(self) -> bool:
        """Deliver what permits and the socket allow; True if a round was not enough."""
        consumer = self.active
        bytes_left, steps_left = ROUND_BYTES, ROUND_STEPS
        while consumer is not None and consumer.permits > 0 and consumer.sink.writable:
            if bytes_left <= 0 or steps_left <= 0:
                return True
            delivery = self._next(consumer.permits, bytes_left)
            if delivery is None:
                return False
            bytes_left -= consumer.deliver(delivery)
            steps_left -= 1
        self._reader.skip_invisible()
        return False

    def _next(self, max_messages: int, max_bytes: int) -> Delivery | None:
        source = self._aborted if self._aborted else self._reader
        delivery = source.peek(max_messages, max_bytes)
        if delivery is not None:
            source.advance(delivery)
        elif source is self._aborted and not self._aborted:
            return self._next(max_messages, max_bytes)
        return delivery

    # -- giving back

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Everything unacknowledged, in order, whatever was asked for: order is what they chose."""
        if consumer is self.active:
            self.rewind()

    def restore(self, positions: Iterable[Position]) -> None:
        """A transaction that had acknowledged these entries was aborted."""
        self._aborted.add(by_ledger(positions))

    def rewind(self) -> None:
        self._aborted.clear()
        self._reader.rewind()

    # -- acknowledgements: the cursor alone knows what is unacknowledged

    unacked_messages: Final = 0

    def release(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        pass

    def keep(self, consumer: Consumer, position: Position, messages: int) -> None:
        pass
