"""A subscription: a cursor, what consumers acknowledge on it, and how it is moved.

    acknowledged: cursor, then the dispatcher's account of unacknowledged messages
`consumer_dispatch.py` has its consumers and their dispatcher. Pending acknowledgements are replayed
before the first consumer is served.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import LedgerClosed
from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed, PersistenceError, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.broker.compaction.seeking import place_of_time
from pybroker.broker.policies.limits import check_consumers
from pybroker.broker.subscriptions.beginnings import next_after_seek
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType
from pybroker.broker.subscriptions.consumer_dispatch import ConsumerDispatch
from pybroker.broker.subscriptions.isolation import kept_in
from pybroker.broker.subscriptions.joining import check_joinable
from pybroker.broker.subscriptions.last_times import LastTimes
from pybroker.broker.subscriptions.subscribed_topic import SubscribedTopic
from pybroker.broker.subscriptions.transactional_acks import TransactionalAcks
from pybroker.broker.subscriptions.waiting_entries import waiting_entry
from pybroker.transaction.pending_acks.covered import Covered
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.pending_acks.records import Held, PendingAck
from pybroker.transaction.txn_status import TxnAction

READER_RETURN_S: Final = 60.0  # for a reader to reconnect after its seek


class Subscription:
    __slots__ = (
        "_closed",
        "_return",
        "_topic",
        "_transactional",
        "consumers",
        "cursor",
        "dispatch",
        "isolation",
        "name",
        "notify",
        "reader",
        "times",
    )

    def __init__(self, topic: SubscribedTopic, cursor: ManagedCursor) -> None:
        self.name = cursor.name
        self.cursor = cursor
        self._topic = topic
        self.isolation = kept_in(cursor.properties)
        self.dispatch = ConsumerDispatch(topic, cursor, self.isolation, self._settled)
        self.consumers = self.dispatch.consumers
        notify, reader = self.dispatch.notify, self.dispatch.reader
        self.notify, self.reader = notify, reader
        self._transactional = TransactionalAcks(topic, cursor, reader, self._restore, notify)
        self.times = LastTimes()
        self._closed: str | None = None
        self._return: asyncio.TimerHandle | None = None  # the deadline for a reader to reconnect

    @classmethod
    async def open(cls, topic: SubscribedTopic, cursor: ManagedCursor) -> "Subscription":
        """Pending acknowledgements are replayed in the background; consumers wait for them."""
        subscription = cls(topic, cursor)
        subscription._transactional.start_replay()
        subscription.dispatch.follow_policies()
        return subscription

    @property
    def durable(self) -> bool:
        return self.cursor.durable

    # -- consumers

    async def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Serve the consumer once it has permits. Raises ConsumerBusy, ConsumerAssignError."""
        self._check_joinable(consumer, kind)
        await self.replayed()
        self._check_joinable(consumer, kind)
        self.dispatch.add(consumer, kind)
        await self._transactional.stored(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Idempotent. The consumer's unacknowledged messages go to the others. A reader's
        subscription ends with its last consumer, also if its only consumer was not admitted.
        """
        if consumer in self.consumers:
            self.dispatch.remove(consumer)
        self._end_deserted_reader()

    def _end_deserted_reader(self) -> None:
        if self.durable or self.consumers or self._closed is not None:
            return
        self._closed = "its last consumer has left"
        self._topic.forget_subscription(self.name)
        self._topic.tasks.start(self.delete(), f"end of reader {self.name}")

    def check_open(self) -> None:
        """Raises ServiceNotReady while the topic is being unloaded."""
        if self._closed is not None:
            raise ServiceNotReady(f"{self} is being unloaded: {self._closed}")

    def _check_joinable(self, consumer: Consumer, kind: SubscriptionType) -> None:
        self.check_open()
        damage = self.dispatch.damage
        if consumer.read_compacted:
            damage = damage or self.dispatch.compacted_damage
        if damage is not None:
            raise PersistenceError(f"{self}: {damage}")
        check_joinable(self, kind)
        check_consumers(self._topic, self)

    @property
    def kind(self) -> SubscriptionType | None:
        """The type of the latest consumers."""
        return self.dispatch.kind

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Adds permits to the consumer; 0 changes nothing."""
        consumer.add_permits(permits)
        self.notify()

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, drops: bool = True
    ) -> None:
        """Deliver these entries again, or (None) all that are not acknowledged; on Exclusive and
        Failover all in any case, in order. `drops`: their client drops what it was given so far.
        """
        self.dispatch.redeliver(consumer, positions, drops)

    def give_back(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Deliver these entries again, on Shared and Key_Shared. No redelivery is counted: the
        application never saw them.
        """
        self.dispatch.give_back(consumer, positions)

    @property
    def redelivers_by_id(self) -> bool:
        """Whether single messages can be redelivered: Exclusive and Failover redeliver all."""
        return self.dispatch.redelivers_by_id

    # -- acknowledgements

    def acknowledge(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> None:
        """Acknowledges whole entries individually, except messages that an open transaction has
        acknowledged, and messages that a delivery left out because of an open transaction.
        """
        if consumer.left_out:
            consumer.left_out.prune(self.cursor.is_deleted)
            positions, parts = consumer.left_out.divide(positions)
            for at, still_unacked, batch_size in parts:
                self.acknowledge_indexes(consumer, Position(*at), still_unacked, batch_size)
        acknowledged = self._transactional.not_pending(positions)
        delete = self.cursor.delete
        for ledger_id, entry_id in acknowledged:
            delete(ledger_id, entry_id)
        dispatch = self.dispatch
        if dispatch.dispatcher is not None:
            dispatch.dispatcher.release(consumer, positions)
        if dispatch.redelivery_counts:
            dispatch.redelivery_counts.forget(acknowledged)
        if dispatch.has_last_message:
            self.notify()

    def acknowledge_indexes(
        self, consumer: Consumer, position: Position, still_unacked: int, batch_size: int
    ) -> None:
        """Acknowledges a part of a batch: the indexes not set in `still_unacked`.

        `batch_size` is the entry's actual size, whatever the client says.
        """
        still_unacked |= consumer.left_out.of(position)
        unacked = self._transactional.still_unacked(position, still_unacked)
        if unacked is None:
            return
        if self.cursor.delete_batch_indexes(position, unacked, batch_size):
            consumer.left_out.forget(position)
            self.dispatch.redelivery_counts.forget([position])
        self._recount(consumer, position, batch_size)
        if self.dispatch.has_last_message:
            self.notify()

    def _recount(self, consumer: Consumer, position: Position, batch_size: int) -> None:
        """Updates how many messages of the batch the consumer holds unacknowledged."""
        if (dispatcher := self.dispatch.dispatcher) is not None:
            reader = self.reader
            bits = reader.unacked_bits(position, batch_size) if reader.wants(position) else 0
            dispatcher.keep(consumer, position, bits.bit_count())

    def acknowledge_cumulative(
        self,
        consumer: Consumer,
        position: Position,
        still_unacked: int | None = None,
        batch_size: int = 0,
    ) -> None:
        """Acknowledges everything up to `position`. Raises NotAllowed on Shared and Key_Shared."""
        self._check_cumulative()
        if position > (limit := self.reader.limit):  # messages after it were not delivered
            position, still_unacked = limit, None
        clear = None if still_unacked else consumer.left_out.acknowledged_up_to(position)
        ack = PendingAck(position, still_unacked, batch_size)
        self._transactional.acknowledge_up_to(ack, consumer.life, clear)
        if self.dispatch.has_last_message:
            self.notify()

    def _check_cumulative(self) -> None:
        if self.kind is not None and not self.kind.single_active:
            raise NotAllowed(
                f"{self} is {self.kind.name}: cumulative acknowledgement needs Exclusive or "
                "Failover; acknowledge each message"
            )

    # -- transactions

    def acknowledge_in_transaction(
        self,
        consumer: Consumer,
        txn_id: TxnId,
        acks: Sequence[PendingAck],
        cumulative: bool,
        covered: Covered | None = None,
    ) -> Awaitable[None]:
        """Durable when the result is done; takes effect when the transaction commits. Raises, or
        fails with, TransactionConflict, NotAllowed.
        """
        self._check_transactional(acks, cumulative)
        if (pending := self._transactional.ready) is not None:
            return self._acknowledge_pending(consumer, txn_id, acks, cumulative, covered, pending)
        acknowledge = self._acknowledge_pending
        later = partial(acknowledge, consumer, txn_id, acks, cumulative, covered)
        return self._transactional.when_opened(later)

    def _check_transactional(self, acks: Sequence[PendingAck], cumulative: bool) -> None:
        self.check_open()
        if not self.durable:
            raise NotAllowed(f"{self} is a reader's: it accepts no transactional acknowledgement")
        if cumulative:
            self._check_cumulative()
            if len(acks) != 1:
                raise NotAllowed("A transactional cumulative acknowledgement must name one message")

    def _acknowledge_pending(
        self,
        consumer: Consumer,
        txn_id: TxnId,
        acks: Sequence[PendingAck],
        cumulative: bool,
        covered: Covered | None,
        pending: PendingAcks,
    ) -> asyncio.Future[None]:
        left_out, to = consumer.left_out, self._transactional
        if cumulative:
            return to.acknowledge_cumulative(pending, txn_id, acks[0], consumer, covered)
        if left_out:
            left_out.prune(self.cursor.is_deleted)
            to.check_clear(pending, txn_id, left_out, acks)
            acks = left_out.spare(acks)
        withheld = partial(self._withhold, consumer, acks)
        return to.acknowledge(pending, txn_id, acks, consumer.life, withheld)

    def _withhold(self, consumer: Consumer, acks: Sequence[PendingAck]) -> None:
        """Removes the messages of `acks` from the consumer's unacknowledged messages."""
        consumer.left_out.taken(acks)
        if (dispatcher := self.dispatch.dispatcher) is not None:
            dispatcher.release(consumer, [a.position for a in acks if not a.still_unacked])
        for ack in (ack for ack in acks if ack.still_unacked):
            self._recount(consumer, ack.position, ack.batch_size)

    def end_transaction(
        self, txn_id: TxnId, action: TxnAction, not_later: bool = False
    ) -> Awaitable[None] | None:
        """Make the transaction's acknowledgements final, or redeliver; see PendingAcks.end."""
        return self._transactional.end(txn_id, action, not_later)

    def _settled(self, positions: Sequence[tuple[int, int]]) -> None:
        """Forgets delivered entries whose transaction was aborted afterwards."""
        if (dispatcher := self.dispatch.dispatcher) is not None:
            dispatcher.release(self.consumers[0], positions)
        self.dispatch.redelivery_counts.forget(positions)
        if self.dispatch.has_last_message:
            self.notify()

    def _restore(self, txn_id: TxnId | None, restored: Mapping[Position, Held]) -> None:
        """Redelivers messages after an abort; cumulatively acknowledged ones only on request."""
        if not self.redelivers_by_id or self.reader.clients_may_return:
            self._transactional.given_back(txn_id, restored)
        for consumer in self.consumers:
            if consumer.left_out:
                for position, held in restored.items():
                    consumer.left_out.given_back(position, held.bits)
        if (dispatcher := self.dispatch.dispatcher) is not None:
            dispatcher.restore(list(restored))
            self.notify()

    async def replayed(self) -> PendingAcks | None:
        """Wait until the pending acknowledgements are known; before that, the backlog includes
        messages that committed transactions have acknowledged. None if no transaction ever took
        part. Raises PersistenceError, ServiceNotReady.
        """
        return await self._transactional.existing()

    # -- moving the cursor

    async def seek(self, position: Position, still_unacked: int = 0, batch_size: int = 0) -> None:
        """The next message is the first at or after `position` or, in a batch there, the first
        whose bit is set in `still_unacked`; at the end of the log, see `beginnings`. Consumers are
        disconnected first and reconnect, as clients expect, so that no message sent before the
        seek counts as sent after it. Raises ServiceNotReady.
        """
        pending = await self._transactional.settled()
        self.check_open()  # it may have been closed meanwhile
        self.dispatch.cursor_moved()
        self.dispatch.disconnect_consumers("the subscription was moved by a seek")
        position = next_after_seek(self._topic.ledger, position, self.reader.limit)
        self.cursor.reset(position, still_unacked, batch_size)
        self.dispatch.redelivery_counts.clear()
        self.reader.moved()
        if not self.durable:
            if self._return is not None:  # left by the previous seek
                self._return.cancel()
            after = asyncio.get_running_loop().call_later
            self._return = after(READER_RETURN_S, self._end_deserted_reader)
        if pending is not None:
            try:
                await pending.checkpoint()
            except LedgerClosed as error:
                raise ServiceNotReady(f"{self} is being unloaded: {error}") from error
        await self.cursor.flush()

    async def seek_to_time(self, timestamp_ms: int) -> None:
        """Goes to the first message published at `timestamp_ms` or later, or not yet readable."""
        place = await place_of_time(self._topic, timestamp_ms)
        await self.seek(min(place, self.reader.limit.after))

    async def skip_to(self, position: Position) -> None:
        """Acknowledge all visible entries up to `position`. Raises ServiceNotReady."""
        self.check_open()
        self.dispatch.cursor_moved()
        self.reader.read_anew()
        self.cursor.mark_delete(min(position, self.reader.limit))
        if (dispatcher := self.dispatch.dispatcher) is not None:
            dispatcher.skipped_to(self.cursor.mark_delete_position)
        self.notify()
        await self.cursor.flush()

    async def skip_all(self) -> None:
        await self.skip_to(self.reader.limit)

    # -- life

    async def close(self, reason: str = "the topic is unloaded") -> None:
        """Disconnect all consumers and make acknowledgements durable."""
        await self.discard(reason)
        await self.cursor.flush()

    async def discard(self, reason: str = "the subscription was deleted") -> None:
        """Disconnect all consumers and break all cycles: see Life.break_cycles."""
        self._closed = reason
        self.dispatch.disconnect_consumers(reason)
        await self._transactional.close()
        self.dispatch.break_cycles()
        if self._return is not None:
            self._return.cancel()

    async def delete(self) -> None:
        """Deletes a reader's subscription with its cursor."""
        await self.discard()
        await self._transactional.delete()
        if self._topic.ledger.cursors.get(self.name) is self.cursor:  # not a newer subscription's
            await self._topic.ledger.delete_cursor(self.name)

    # -- for the admin API

    def __str__(self) -> str:
        return f"Subscription {self.name} of {self._topic.name}"

    async def peek(self, number: int) -> tuple[Position, bytes] | None:
        """The unacknowledged entry number `number`, counted from 1."""
        return await waiting_entry(self._topic.ledger, self.cursor, self._topic.hidden, number)

    @property
    def mark_delete_position(self) -> Position:
        return self.cursor.mark_delete_position

    @property
    def backlog(self) -> int:
        """Entries not acknowledged yet; aborted messages and markers do not count."""
        return self.dispatch.backlog

    @property
    def pending_acks(self) -> PendingAcks | None:
        """What open transactions acknowledged; None before the replay, or without transactions."""
        return self._transactional.opened
