"""The pending acknowledgements of one subscription, opened on first use.

They are opened when the subscription is loaded if it has a pending-ack log, otherwise at its first
transactional acknowledgement. Plain acknowledgements check here to skip messages that an open
transaction holds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from managed_ledger.prompt import Prompt, fail, prompt
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import PersistenceError, ServiceNotReady
from pybroker.base.names import TopicName, TxnId, foreign_pending_ack_log, pending_ack_log
from pybroker.base.runtime import Tasks, do_nothing
from pybroker.broker.dispatch.cumulative import Unclear, parted, spared_in_transaction
from pybroker.broker.dispatch.entry_reader import EntryReader
from pybroker.broker.dispatch.left_out import LeftOut
from pybroker.broker.dispatch.life import Life
from pybroker.broker.dispatch.lives import Lives
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.transaction.pending_acks.covered import Covered
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.pending_acks.records import (
    ALL_INDEXES,
    NOTHING_HELD,
    AckRecord,
    Held,
    LifeRecord,
    PendingAck,
)
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction

log = logging.getLogger(__name__)


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
        "_opened_by",
        "_opening",
        "_reader",
        "_topic",
        "_waiting",
        "exist",
        "opened",
    )

    def __init__(
        self,
        topic: TransactionalTopic,
        cursor: ManagedCursor,
        reader: EntryReader,
        restored: Callable[[TxnId | None, Mapping[Position, Held]], None],
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
        self._opened_by: asyncio.Task[PendingAcks] | None = None  # for acknowledgements that wait
        self._waiting = 0  # how many do
        self._closed = False
        self.exist = cursor.durable and self._has_log()

    def _has_log(self) -> bool:
        """Whether there is a pending-ack log, its own or one that Apache Pulsar's broker left."""
        exists, name = self._topic.factory.exists, self._topic.name
        subscription = self._cursor.name
        if exists(pending_ack_log(name, subscription)):
            return True
        return exists(foreign_pending_ack_log(name, subscription))

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
        """All callers share one opening; when it fails, the next caller tries again. Raises
        PersistenceError, ServiceNotReady.
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

    @property
    def ready(self) -> PendingAcks | None:
        """None if an acknowledgement has to wait, also for earlier ones that do."""
        return None if self._waiting else self.opened

    def when_opened(
        self, acknowledge: Callable[[PendingAcks], asyncio.Future[None]]
    ) -> Awaitable[None]:
        """Calls `acknowledge` once the log is open. Acknowledgements keep their order: each
        cumulative one of a transaction goes further than the one before. Raises ServiceNotReady;
        fails with the errors of `open` and of `acknowledge`.
        """
        if self._closed:
            raise self._unloaded()
        opening = self._opened_by or self._opening or self._start_opening()
        self._opened_by, self._waiting = opening, self._waiting + 1
        turn: Prompt[asyncio.Future[None]] = prompt()
        opening.add_done_callback(partial(self._take_turn, acknowledge, turn))
        return _when_held(turn)

    def _take_turn(
        self,
        acknowledge: Callable[[PendingAcks], asyncio.Future[None]],
        turn: asyncio.Future[asyncio.Future[None]],
        opening: asyncio.Task[PendingAcks],
    ) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._opened_by = None
        if turn.done():
            return  # the client has left
        try:
            if opening.cancelled():
                raise self._unloaded()
            turn.set_result(acknowledge(opening.result()))
        except Exception as error:
            fail(turn, error)

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
            opened.kept = self._kept
            self._restore_lives(opened)
            opened.tell_replayed()
            self.opened = self._reader.withheld = opened
            return opened
        finally:
            self._opening = None

    def _restore_lives(self, opened: PendingAcks) -> None:
        if restored := opened.lives.restored:
            lives, end = self._reader.require_lives(), self._reader.end
            lives.restore(restored.values(), end, self._cursor.last_acknowledged)
            restored.clear()
            if (record := opened.cumulative_record) is not None:
                lives.restore_hold(record, opened.lives.came_since)
        if self._reader.lives is not None:
            self._follow(self._reader.lives, opened)

    def _follow(self, lives: Lives, opened: PendingAcks) -> None:
        if lives.on_changed is None:
            lives.on_changed = opened.lives.note
            lives.store()

    async def stored(self, consumer: Consumer) -> None:
        """Wait until the log knows the life of the client, if it has one. Clients that transact
        need a log before their first transaction: after an unload or a crash they may acknowledge
        what they were given before it.
        """
        if (life := consumer.life) is None:
            return
        if self.opened is None and consumer.request.transacts and self._cursor.durable:
            try:
                await self.open()
            except (PersistenceError, ServiceNotReady) as error:
                log.warning("%s: its client is not noted: %s", self._cursor.name, error)
        if (opened := self.opened) is not None:
            self._follow(self._reader.require_lives(), opened)
            await opened.lives.note(life)

    def _kept(self) -> tuple[Mapping[Position, Held], Sequence[LifeRecord]]:
        """What a snapshot keeps beside the open transactions."""
        lives = self._reader.lives
        return (NOTHING_HELD, ()) if lives is None else (lives.given_back, lives.records())

    def _cumulative_commits(self, record: AckRecord) -> None:
        if (lives := self._reader.lives) is not None:
            lives.commits(record, self._unacked_by_now)

    def _unacked_by_now(self, position: Position) -> int:
        if self._cursor.is_deleted(position):
            return 0
        unacked = self._cursor.unacked_indexes(position)
        return ALL_INDEXES if unacked is None else unacked

    def _ended(self, txn_id: TxnId, action: TxnAction) -> None:
        if (lives := self._reader.lives) is not None:
            lives.ended(txn_id, action)
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

    def acknowledge_up_to(self, ack: PendingAck, life: Life | None, clear: bool | None) -> None:
        """Acknowledges everything up to `ack`, except messages that the consumer was not given
        although it was given later ones. `clear`: see `spared_in_transaction`.
        """
        cursor, pending, lives = self._cursor, self._pending, self._reader.lives
        position, still_unacked = ack.position, ack.still_unacked
        given_back = None if lives is None else lives.given_back
        if life is None or lives is None or (pending is None and not given_back):
            self._plainly(lives, life, ack)
            cursor.mark_delete(position, still_unacked, ack.batch_size)
            return
        assert given_back is not None
        after = max(given_back.settled_to, cursor.mark_delete_position)
        covered, spared = parted(lives, life, ack, clear, after)
        self._plainly(lives, life, ack)
        if pending is not None:
            for at, held in pending.held_singly(after, position).items():
                spared[at] = spared.get(at, held) | held
        cursor.mark_delete_around(position, spared, still_unacked, ack.batch_size, after)
        given_back.settled_to = max(after, position.before if still_unacked else position)
        for at, held in covered.items():
            if at <= after:
                self._acknowledge_late(at, held)
            given_back.forget(at, *held)
        given_back.forget_up_to(cursor.mark_delete_position)

    def _plainly(self, lives: Lives | None, life: Life | None, ack: PendingAck) -> None:
        if life is not None and life.acknowledges_plainly(ack.reach) and lives is not None:
            lives.store()

    def _acknowledge_late(self, position: Position, late: Held) -> None:
        """Acknowledges `late`, except messages that a transaction holds."""
        if (unacked := self.still_unacked(position, 0)) is None:
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
        life: Life | None,
        withheld: Callable[[], None],
    ) -> asyncio.Future[None]:
        """Like PendingAcks.acknowledge. Also raises TransactionConflict if another transaction has
        consumed a part of a batch that the client acknowledges as a whole.
        """
        if life is not None and life.taints:
            unacked = self._cursor.unacked_indexes
            for ack in acks:
                rival = None if ack.still_unacked else life.tainted_by(txn_id, ack.reach)
                if rival is not None and unacked(ack.position):
                    raise pending.conflict(txn_id, ack, _consumed(rival))
        return pending.acknowledge(txn_id, acks, withheld, partial(self._taken, txn_id, acks, life))

    def _taken(self, txn_id: TxnId, acks: Sequence[PendingAck], life: Life | None) -> None:
        if (lives := self._reader.lives) is not None:
            lives.taken(life, txn_id, acks)
            lives.store()

    def check_clear(
        self, pending: PendingAcks, txn_id: TxnId, left_out: LeftOut, acks: Sequence[PendingAck]
    ) -> None:
        """Raises TransactionConflict if a batch was redelivered meanwhile with other messages."""
        if (unclear := left_out.unclear(acks)) is not None:
            raise pending.conflict(txn_id, unclear, _REDELIVERED)

    def acknowledge_cumulative(
        self,
        pending: PendingAcks,
        txn_id: TxnId,
        ack: PendingAck,
        consumer: Consumer,
        covered: Covered | None,
    ) -> asyncio.Future[None]:
        """Raises, or fails with, the errors of PendingAcks.acknowledge_cumulative. Raises
        TransactionConflict if another transaction has acknowledged messages of which the client may
        have another delivery, or if it is unclear which messages `ack` covers. Nothing is unclear
        if it names the messages: `covered`.
        """
        lives, reader, spared = self._reader.require_lives(), self._reader, NOTHING_HELD
        life = consumer.life
        assert life is not None
        if ack.position > (limit := reader.limit):
            raise pending.conflict(txn_id, ack, f"messages after {limit} are not delivered yet")
        if covered is not None:
            mark = self._cursor.mark_delete_position
            covered.unacknowledged = reader.unacknowledged(mark, ack.position)
            covered.hidden = reader.hidden
        else:
            self.check_clear(pending, txn_id, consumer.left_out, [ack])
            if (rival := life.tainted_by(txn_id, ack.reach)) is not None:
                raise pending.conflict(txn_id, ack, _consumed(rival))
            if lives.has_again(life, pending.cumulative_record, ack, self._unacked_by_now):
                raise pending.conflict(txn_id, ack, _consumed(txn_id))
            spared = self._spared(pending, txn_id, ack, life, consumer.left_out.is_clear(ack))
        is_clear = lives.is_clear(life, ack)
        done = pending.acknowledge_cumulative(txn_id, ack, spared, life.number, is_clear, covered)
        lives.acknowledged(life, txn_id, ack, is_clear, covered is not None)
        return done

    def _spared(
        self, pending: PendingAcks, txn_id: TxnId, ack: PendingAck, life: Life, clear: bool | None
    ) -> Mapping[Position, Held]:
        """The messages up to `ack` that aborted transactions withheld from the consumer."""
        lives = self._reader.require_lives()
        if not lives.given_back:
            return NOTHING_HELD
        try:
            unacked = partial(self._unacked, txn_id)
            return spared_in_transaction(lives, life, ack, clear, unacked)
        except Unclear as unclear:
            raise pending.conflict(txn_id, ack, _unclear(unclear)) from None

    def _unacked(self, txn_id: TxnId, position: Position) -> int:
        pending = self.opened
        if pending is None or pending.is_pending(*position):
            return 0
        left = self._unacked_by_now(position)
        return left & ~pending.pending_indexes(position) & pending.left_by(txn_id, position)

    def given_back(self, txn_id: TxnId | None, messages: Mapping[Position, Held]) -> None:
        """Notes messages that an abort has given back, on an Exclusive or Failover subscription or
        one without a type yet.
        """
        if messages:
            lives, is_deleted = self._reader.require_lives(), self._cursor.is_deleted
            lives.given_back.forget_up_to(self._cursor.mark_delete_position)
            lives.add_given_back(txn_id, messages, is_deleted)

    def still_unacked(self, position: Position, still_unacked: int) -> int | None:
        """`still_unacked` and the indexes that a transaction holds; None if it holds them all."""
        pending = self._pending
        if pending is None:
            return still_unacked
        if pending.is_pending(*position):
            return None
        return still_unacked | pending.pending_indexes(position)

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
            self.opened.on_restored = do_nothing
            self.opened.follow(do_nothing, do_nothing)
            self.opened.kept = lambda: (NOTHING_HELD, ())
        self._on_restored = self._notify = do_nothing

    async def delete(self) -> None:
        if self.exist:
            await self._topic.factory.delete(pending_ack_log(self._topic.name, self._cursor.name))


_REDELIVERED: Final = (
    "the batch was redelivered meanwhile, some of its messages for the first time: abort, ask for "
    "redelivery, and acknowledge what you then receive"
)


async def _when_held(turn: asyncio.Future[asyncio.Future[None]]) -> None:
    await (await turn)


def _consumed(rival: TxnId) -> str:
    return (
        f"transaction {rival} has acknowledged messages that this consumer was given, too: abort, "
        "ask for redelivery, and acknowledge the messages you then receive"
    )


def _unclear(unclear: Unclear) -> str:
    if unclear.dropped:
        return (
            f"{unclear.position} was delivered after the consumer had acknowledged later messages "
            "without a transaction, and clients drop such a message: acknowledge it individually, "
            "or continue with another consumer"
        )
    return (
        f"{unclear.position} was redelivered in the meantime: abort, ask for redelivery, and "
        "acknowledge the messages you then receive"
    )
