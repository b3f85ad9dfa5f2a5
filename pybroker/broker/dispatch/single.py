"""Exclusive and Failover: one active consumer (election) gets everything, in order.

When another one becomes active, reading restarts after the mark-delete position. An Exclusive
consumer with key ranges gets only the messages inside them (key_ranges.py).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from managed_ledger.position import Position
from pybroker.broker.dispatch.compacted_reader import CompactedReader
from pybroker.broker.dispatch.delivery import ROUND_BYTES, ROUND_STEPS, Delivery, by_ledger
from pybroker.broker.dispatch.election import Election
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.key_ranges import LOOK_AHEAD, KeyRanges, ranges_of
from pybroker.broker.dispatch.life import Life
from pybroker.broker.dispatch.redelivery import RedeliveryQueue
from pybroker.broker.subscriptions.consumer import Consumer


class SingleActiveDispatcher:
    def __init__(
        self,
        reader: EntryReader,
        failover: bool,
        partition: int,
        compacted: Callable[[], CompactedReader],
    ) -> None:
        """`partition` is -1 for a topic that is not a partition; `compacted` creates the reader for
        a consumer that reads compacted.
        """
        self._plain = reader
        self._lives = reader.require_lives()
        self._new_compacted = compacted
        self._reader: EntryReader | CompactedReader = reader  # for the active consumer
        self._failover = failover
        self._election = Election(failover, partition)
        self._ranges: KeyRanges | None = None  # of the active consumer
        self._aborted = RedeliveryQueue(reader)

    @property
    def active(self) -> Consumer | None:
        return self._election.active

    @property
    def compacted(self) -> CompactedReader | None:
        """The reader of the active consumer, if that reads compacted."""
        return self._reader if isinstance(self._reader, CompactedReader) else None

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError for unusable key ranges. Failover ignores all ranges."""
        ranges = None if self._failover else ranges_of(consumer)
        ask = consumer.request
        consumer.life = self._lives.arrive(ask.name, ask.consumer_id, ask.request_id, ask.epoch)
        if self._election.add(consumer):
            self._ranges = ranges
            self._begin()

    def remove(self, consumer: Consumer) -> None:
        assert consumer.life is not None
        if self._election.remove(consumer):
            self._begin()
        self._lives.leave(consumer.life, consumer.closed_by_client)

    def _begin(self) -> None:
        """Call when the active consumer has changed or left."""
        if isinstance(self._reader, CompactedReader):
            self._reader.retire()
        compacted = self.active is not None and self.active.read_compacted
        self._reader = self._new_compacted() if compacted else self._plain
        self.rewind()

    # -- delivering

    def dispatch(self) -> bool:
        """Deliver what permits and the socket allow; True if a round was not enough."""
        consumer = self.active
        bytes_left, steps_left = ROUND_BYTES, ROUND_STEPS
        while consumer is not None and consumer.permits > 0 and consumer.sink.writable:
            if bytes_left <= 0 or steps_left <= 0:
                return True
            if self._ranges is None:
                delivery = self._next(consumer.permits, bytes_left)
            else:
                delivery = self._next_inside(self._ranges, consumer.permits, bytes_left)
            if delivery is None:
                return False
            if delivery.entries:  # otherwise entries were passed over
                bytes_left -= consumer.deliver(delivery)
            steps_left -= 1
        self._reader.skip_invisible()
        return False

    def _next(self, max_messages: int, max_bytes: int) -> Delivery | None:
        delivery = self._peek(max_messages, max_bytes)
        if delivery is not None and delivery.entries:
            read_to = self._plain.position
            self._source.advance(delivery)
            if self._lives.given_back:
                self._note_given(delivery, read_to)
        return delivery

    @property
    def _source(self) -> EntryReader | CompactedReader | RedeliveryQueue:
        return self._aborted if self._aborted else self._reader

    def _peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        delivery = self._source.peek(max_messages, max_bytes)
        if delivery is not None and self._aborted:
            return self._lives.given_back.late_only(delivery)
        return delivery

    def _next_inside(self, ranges: KeyRanges, max_messages: int, max_bytes: int) -> Delivery | None:
        """Like `_next`; the delivery is also empty if all entries were outside the ranges."""
        delivery = self._peek(max(max_messages, LOOK_AHEAD), max_bytes)
        if delivery is None or not delivery.entries:
            return delivery
        taken, done = ranges.split(delivery, max_messages)
        read_to = self._plain.position
        self._source.pass_over(done)
        self._plain.spend(taken)
        if self._lives.given_back:
            self._note_given(done, read_to)
        return taken

    def _note_given(self, delivery: Delivery, read_to: Position) -> None:
        """Note that the active consumer gets the delivery, after everything before `read_to`."""
        self._lives.delivered(delivery, read_to)
        if self._reader is not self._plain:  # messages that compaction left out never come
            self._lives.passed(self._plain.position, read_to)

    # -- giving back

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, drops: bool
    ) -> None:
        """Redeliver everything unacknowledged, whatever was requested: these types guarantee
        order. `drops`: the client drops what it was given so far.
        """
        consumer.left_out.asked_again(None)
        forgets = consumer.life if drops else None
        if consumer is self.active:
            self._rewind(forgets)
        elif forgets is not None:
            self._lives.forget(forgets)

    def restore(self, positions: Iterable[Position]) -> None:
        """Redeliver entries that an aborted transaction had acknowledged."""
        if self._reader is not self._plain:  # the entries' ledgers may be gone
            self.rewind()
        else:
            self._aborted.add(by_ledger(positions))

    def rewind(self) -> None:
        self._rewind(None)

    def _rewind(self, forgets: Life | None) -> None:
        self._lives.begin(None if self.active is None else self.active.life, forgets)
        self._aborted.clear()
        self._reader.rewind()

    @property
    def in_replay(self) -> int:
        return len(self._aborted)

    delayed: Final = 0  # these types deliver delayed messages at once
    delayed_bytes: Final = 0

    # -- acknowledgements: the cursor alone knows what is unacknowledged

    unacked_messages: Final = 0

    def release(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        pass

    def keep(self, consumer: Consumer, position: Position, messages: int) -> None:
        pass

    def skipped_to(self, mark: Position) -> None:
        pass
