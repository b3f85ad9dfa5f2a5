"""The pending acknowledgements of one subscription, opened on first use.

They are opened when the subscription is loaded if it has a pending-ack log, otherwise at its first
transactional acknowledgement. Plain acknowledgements check here to skip messages that an open
transaction holds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from pybroker.base.config import BrokerConfig
from pybroker.base.errors import PersistenceError, ServiceNotReady, TransactionConflict
from pybroker.base.names import TopicName, TxnId, foreign_pending_ack_log, pending_ack_log
from pybroker.base.runtime import Tasks, nobody_cares
from pybroker.broker.dispatch.clients import Client
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.passed_over import GivenSoFar, PassedOver
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.pending_acks.records import ALL_INDEXES, NOTHING_HELD, Held, PendingAck
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction


class TransactionalTopic(Protocol):
    @property
    def name(self) -> TopicName: ...
    @property
    def factory(self) -> ManagedLedgerFactory: ...
    @property
    def outcomes(self) -> TransactionOutcomes: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def ended(self) -> bool: ...


class TransactionalAcks:
    __slots__ = (
        "_closed",
        "_cursor",
        "_notify",
        "_on_restored",
        "_opening",
        "_reader",
        "_topic",
        "exist",
        "opened",
    )

    def __init__(
        self,
        topic: TransactionalTopic,
        cursor: ManagedCursor,
        reader: EntryReader,
        restored: Callable[[Mapping[Position, Held]], None],
        notify: Callable[[], None],
    ) -> None:
        """`restored` receives messages that transactions no longer hold individually; `notify` is
        called when consumers may be at the end of a terminated topic.
        """
        self.opened: PendingAcks | None = None
        self._topic = topic
        self._cursor = cursor
        self._reader = reader
        self._on_restored = restored
        self._notify = notify
        self._opening: asyncio.Task[PendingAcks] | None = None
        self._closed = False
        self.exist = cursor.durable and self._has_log()

    def _has_log(self) -> bool:
        """Whether there is a pending-ack log, its own or one that Apache Pulsar's broker left."""
        exists, name = self._topic.factory.exists, self._topic.name
        subscription = self._cursor.name
        if exists(pending_ack_log(name, subscription)):
            return True
        return exists(foreign_pending_ack_log(name, subscription))

    # -- opening

    def start_replay(self) -> None:
        if self.exist:
            self._start_opening()

    async def existing(self) -> PendingAcks | None:
        """None if this subscription has taken part in no transaction. Waits for the replay."""
        return await self.open() if self.exist else None

    async def settled(self) -> PendingAcks | None:
        """Like `existing`, but after all ended transactions have taken effect, so that the cursor
        may be moved back.
        """
        pending = await self.existing()
        if pending is not None:
            await pending.settled()
        return pending

    async def open(self) -> PendingAcks:
        """All callers share one opening; when it fails, the next caller tries again.

        Raises PersistenceError, ServiceNotReady.
        """
        if self.opened is not None:
            return self.opened
        if self._closed:
            raise self._unloaded()
        opening = self._opening or self._start_opening()
        await asyncio.wait([opening])  # an unload cancels the opening, but not its waiters
        if opening.cancelled():
            raise self._unloaded()
        try:
            return opening.result()
        finally:
            del opening  # its failure refers to this frame, which must not refer back

    def _unloaded(self) -> ServiceNotReady:
        return ServiceNotReady(
            f"{self._topic.name} is being unloaded: retry the transactional acknowledgement on "
            f"subscription {self._cursor.name}"
        )

    def _start_opening(self) -> asyncio.Task[PendingAcks]:
        self.exist = True
        self._opening = self._topic.tasks.start(self._open(), f"replay of {self._cursor.name}")
        return self._opening

    async def _open(self) -> PendingAcks:
        try:
            topic = self._topic
            opened = await PendingAcks.open(
                topic.factory, topic.name, self._cursor, topic.outcomes, topic.config
            )
        except ManagedLedgerError as error:
            self.exist = self._has_log()  # False if there was no room to create it
            raise PersistenceError(
                f"The pending acknowledgements of subscription {self._cursor.name}, "
                f"{self._topic.name}, could not be read; try again: {error}"
            ) from error
        else:
            opened.on_restored = self._on_restored
            opened.follow(self._ended, self._cumulative_commits)
            opened.passed_over = self._passed_over
            opened.tell_replayed()
            if (passed := self._reader.passed_over) is not None:
                # The client that acknowledged is no longer known, and may reconnect.
                passed.last_acknowledged.suppose(self._cursor.last_acknowledged)
            self.opened = self._reader.withheld = opened
            return opened
        finally:
            self._opening = None

    def _cumulative_commits(self, txn_id: TxnId, up_to: Position) -> None:
        if (clients := self._reader.clients) is not None:
            clients.cumulative_commits(txn_id, up_to, self._reader.position, self._reader.first)

    def _ended(self, txn_id: TxnId, action: TxnAction) -> None:
        if (clients := self._reader.clients) is not None:
            clients.ended(txn_id, action)
        if action is TxnAction.COMMIT and self._topic.ended:
            self._notify()

    def end(self, txn_id: TxnId, action: TxnAction, not_later: bool) -> Awaitable[None] | None:
        """Like PendingAcks.end; loads the log first if necessary."""
        if self.opened is not None:
            return self.opened.end(txn_id, action, not_later)
        if not self.exist:
            return None
        if not_later:
            raise WouldWait
        return self._replay_and_end(txn_id, action)

    async def _replay_and_end(self, txn_id: TxnId, action: TxnAction) -> None:
        pending = await self.existing()
        if pending is not None and (ending := pending.end(txn_id, action)) is not None:
            await asyncio.shield(ending)

    # -- what plain acknowledgements must leave alone

    @property
    def _pending(self) -> PendingAcks | None:
        opened = self.opened
        return opened if opened is not None and opened.holds_singly else None

    def not_pending(self, positions: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """The entries that may be acknowledged whole. Of batches held in part, acknowledges the
        rest.
        """
        pending = self._pending
        if pending is None:
            return positions
        return [at for at in positions if self._acknowledge_rest(pending, Position(*at))]

    def _acknowledge_rest(self, pending: PendingAcks, position: Position) -> bool:
        if pending.is_pending(*position):
            return False
        bits = pending.pending_indexes(position)
        if bits:
            # One index more than the highest pending one: otherwise the bits could cover the whole
            # batch, which would mean "nothing acknowledged".
            self._cursor.delete_batch_indexes(position, bits, bits.bit_length() + 1)
        return not bits

    def acknowledge_up_to(
        self, position: Position, still_unacked: int | None, batch_size: int, given: GivenSoFar
    ) -> None:
        """Acknowledges everything up to `position`, except messages that the consumer was not given
        although it was given later ones.
        """
        reader, cursor, pending = self._reader, self._cursor, self._pending
        if pending is None and reader.passed_over is None:
            cursor.mark_delete(position, still_unacked, batch_size)
            return
        passed = reader.passed_over = reader.passed_over or PassedOver()
        after = max(passed.acknowledged_to, cursor.mark_delete_position)
        given = self._judged(passed, position, still_unacked, given)
        clients = reader.clients
        shared = clients is not None and clients.share(given.name)
        covered = passed.covered_plainly(position, still_unacked, given, shared)
        spared = passed.not_given(after, position, covered)
        if pending is not None:
            for at, held in pending.held_singly(after, position).items():
                spared[at] = spared.get(at, held) | held
        cursor.mark_delete_around(position, spared, still_unacked, batch_size, after)
        passed.acknowledged_to = max(after, position.before if still_unacked else position)
        if still_unacked and position in covered:  # the rest of that batch must still be covered
            covered.remove(position)
            if position <= after:
                self._acknowledge_late(position, passed.restored(position), still_unacked)
        late = passed.forget(covered, cursor.mark_delete_position)
        for at, held in late.items():
            if at <= after:
                self._acknowledge_late(at, held)
        if passed.is_over and pending is None:
            reader.passed_over = None

    def _judged(
        self, passed: PassedOver, position: Position, still_unacked: int | None, given: GivenSoFar
    ) -> GivenSoFar:
        """`given`, unsure if the acknowledgement may refer to either of two deliveries of the batch
        at `position`. After an abort gave back a part of the batch, it was redelivered with its
        other unacknowledged messages. If its last message is one of these, that message was given
        twice.
        """
        held = passed.messages.get(position)
        if still_unacked or held is None or held.bits == ALL_INDEXES:
            return given
        unacked = self._cursor.unacked_indexes(position)
        last = (held.batch_size if unacked is None else unacked.bit_length()) - 1
        return given if held.bits >> last & 1 else replace(given, sure=False)

    def _acknowledge_late(self, position: Position, late: Held, still_unacked: int = 0) -> None:
        """Acknowledges `late`, except for the `still_unacked` part and for messages that another
        transaction holds.
        """
        unacked = self.still_unacked(position, still_unacked)
        if unacked is None:
            return
        if late.bits != ALL_INDEXES:
            self._cursor.delete_batch_indexes(position, ~late.bits | unacked, late.batch_size)
        elif unacked:
            self._cursor.delete_batch_indexes(position, unacked, unacked.bit_length() + 1)
        else:
            self._cursor.delete(*position)

    def acknowledge(
        self,
        pending: PendingAcks,
        txn_id: TxnId,
        acks: Sequence[PendingAck],
        client: Client,
        withheld: Callable[[], None],
    ) -> asyncio.Future[None]:
        """Like PendingAcks.acknowledge. Also raises TransactionConflict if another transaction has
        consumed a part of a batch that `client` acknowledges as a whole.
        """
        if client.consumed_by is not None:
            unacked = self._cursor.unacked_indexes
            if any(not each.still_unacked and unacked(each.position) for each in acks):
                raise _consumed(client.consumed_by)
        done = pending.acknowledge(txn_id, acks, withheld)
        clients = self._reader.clients
        if clients is not None and not clients.are_only(client):
            positions = [each.position for each in acks]
            clients.taken(client, txn_id, positions, self._reader.position, self._reader.first)
        return done

    def acknowledge_cumulative(
        self,
        pending: PendingAcks,
        txn_id: TxnId,
        ack: PendingAck,
        given: GivenSoFar,
        client: Client,
    ) -> asyncio.Future[None]:
        """Raises, or fails with, the errors of PendingAcks.acknowledge_cumulative. Raises
        TransactionConflict if another transaction has acknowledged messages that `client` may have
        processed, or if it is unclear which messages `ack` covers.
        """
        if (rival := client.rival(txn_id)) is not None:
            raise _consumed(rival)
        if ack.position > (limit := self._reader.limit):
            raise TransactionConflict(
                f"Transaction {txn_id} cannot acknowledge up to {ack.position}: messages after "
                f"{limit} are not delivered yet"
            )
        done = pending.acknowledge_cumulative(txn_id, ack, self._not_given(ack, given))
        client.holds(txn_id, ack.position, given.read_to)
        return done

    def _not_given(self, ack: PendingAck, given: GivenSoFar) -> Mapping[Position, Held]:
        """The messages up to `ack` that aborted transactions withheld from the consumer.

        Raises TransactionConflict if that is unclear: excluded messages would be redelivered
        although they had effects, and covered ones might have been dropped unseen.
        """
        passed, cursor, pending = self._reader.passed_over, self._cursor, self._pending
        if passed is None:
            return {}
        given = self._judged(passed, ack.position, ack.still_unacked, given)
        covered = passed.covered(ack.position, ack.still_unacked, given)
        restored = passed.not_given(cursor.mark_delete_position, ack.position, covered)
        spared = {at: held for at, held in restored.items() if not cursor.is_deleted(at)}
        unclear = passed.is_unclear(ack.position, given, covered)
        # Of what is covered, the client may have been given some before, without asking again.
        if unclear or given.may_include(ack.position, chain(spared, covered)):
            raise TransactionConflict(
                f"Messages up to {ack.position} were redelivered in the meantime, some for the "
                "first time: abort, ask for redelivery, and acknowledge the messages you then "
                "receive"
            )
        for at in passed.in_doubt(ack.position, given.name, covered):
            if not (cursor.is_deleted(at) or (pending is not None and pending.is_pending(*at))):
                raise TransactionConflict(
                    f"{at} was delivered after the consumer had acknowledged later messages "
                    "without a transaction, and clients drop such a message: acknowledge it "
                    "individually, or continue with another consumer"
                )
        return spared

    def restored(self, restored: Mapping[Position, Held]) -> None:
        """Notes messages that an abort has given back, on an Exclusive or Failover subscription or
        one without a type yet.
        """
        reader = self._reader
        if restored:
            reader.passed_over = reader.passed_over or PassedOver()
            mark, is_deleted = self._cursor.mark_delete_position, self._cursor.is_deleted
            reader.passed_over.restore(restored, mark, is_deleted)

    def _passed_over(self) -> Mapping[Position, Held]:
        passed = self._reader.passed_over
        return NOTHING_HELD if passed is None else passed.messages

    def still_unacked(self, position: Position, still_unacked: int) -> int | None:
        """`still_unacked` and the indexes that a transaction holds; None if it holds them all."""
        pending = self._pending
        if pending is None:
            return still_unacked
        if pending.is_pending(*position):
            return None
        return still_unacked | pending.pending_indexes(position)

    # -- life

    async def close(self) -> None:
        """Close the log, and open it no more: otherwise this would write to it concurrently with
        its next owner.
        """
        self._closed = True
        if (opening := self._opening) is not None:
            opening.cancel()
            await asyncio.wait([opening])
        if self.opened is not None:
            await self.opened.close()
            self.opened.on_restored = nobody_cares
            self.opened.follow(nobody_cares, nobody_cares)
            self.opened.passed_over = lambda: NOTHING_HELD
        self._on_restored = self._notify = nobody_cares

    async def delete(self) -> None:
        if self.exist:
            await self._topic.factory.delete(pending_ack_log(self._topic.name, self._cursor.name))


def _consumed(rival: TxnId) -> TransactionConflict:
    return TransactionConflict(
        f"Transaction {rival} has acknowledged messages that this consumer was given, too: abort, "
        "ask for redelivery, and acknowledge the messages you then receive"
    )
