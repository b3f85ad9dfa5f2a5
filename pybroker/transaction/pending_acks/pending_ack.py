"""Acknowledgements in transactions, for one subscription.

    acknowledge   validate and take (TransactionConflict), log, answer when the record is durable
    end           log COMMIT or ABORT; when the record is durable, the cursor moves, or the messages
                  are released for redelivery

Cursors are written once a second, so a COMMIT record stays in the log until the cursor with its
acknowledgements is durable: a checkpoint flushes the cursor and replaces the log by its live state.
Replay applies every remaining COMMIT again; if the cursor includes it already, nothing changes.

Some messages outlive the records of their transaction: an aborted transaction had held them back
from consumers, and they are still unacknowledged. A checkpoint stores them, and replay reports them
again.

If a transaction was left open here, the outcome is requested, as in the topic's buffer.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import LedgerClosed, ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.prompt import Prompt, fail, prompt
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import (
    InvalidTxnStatus,
    PersistenceError,
    TransactionConflict,
    TransactionCoordinatorNotFound,
)
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Tasks, do_nothing
from pybroker.transaction.paced_visits import PacedVisits
from pybroker.transaction.pending_acks.applying import (
    Applying,
    Pieces,
    abort_in_pieces,
    commit_in_pieces,
)
from pybroker.transaction.pending_acks.covered import Covered
from pybroker.transaction.pending_acks.life_log import LifeLog
from pybroker.transaction.pending_acks.migration import take_over
from pybroker.transaction.pending_acks.records import (
    ALL_INDEXES,
    NOTHING_HELD,
    AckRecord,
    Conflict,
    EndRecord,
    Held,
    LifeRecord,
    PassedOverRecord,
    PendingAck,
    Record,
)
from pybroker.transaction.pending_acks.snapshot import Kept, kept_records
from pybroker.transaction.pending_acks.state import PendingAckState
from pybroker.transaction.pending_acks.stats import PendingAckStats, stats_of
from pybroker.transaction.pending_acks.store import PendingAckStore
from pybroker.transaction.txn_status import (
    TransactionOutcomes,
    TxnAction,
    action_to_settle,
    require_open,
)

_CHECK_INTERVAL_S: Final = 5.0
_LOOKED_AT_A_TURN: Final = 5000

log = logging.getLogger(__name__)


class PendingAcks:
    """What open transactions have acknowledged on one subscription. `open` replays its log."""

    def __init__(
        self,
        topic: TopicName,
        ledger: ManagedLedger,
        cursor: ManagedCursor,
        store: PendingAckStore,
        outcomes: TransactionOutcomes,
        config: BrokerConfig,
    ) -> None:
        self._topic = str(topic)
        self._ledger = ledger
        self._cursor = cursor
        self._store = store
        self._outcomes = outcomes
        self._log_entries = config.transaction_pending_ack_log_entries
        self._state = PendingAckState(cursor)
        self._applying = Applying()
        # Called after an abort or a failed write with the messages that were held individually, in
        # order. Messages held cumulatively were delivered: the aborting client requests them again.
        # The transaction is None if it ended before the log was opened.
        self.on_restored: Callable[[TxnId | None, Mapping[Position, Held]], object] = do_nothing
        self._on_ended: Callable[[TxnId, TxnAction], object] = do_nothing
        # What snapshots keep beside the transactions: the messages passed to `on_restored` that
        # might still be covered by mistake, and the lives of clients.
        self.kept: Callable[[], Kept] = lambda: (NOTHING_HELD, ())
        self.lives = LifeLog(store, self._checkpoint_if_long)
        self._replayed: dict[Position, Held] = {}
        self._tasks = Tasks(f"pending acknowledgements of {topic}, {cursor.name}")
        self._visits = PacedVisits(ledger.housekeeper)
        self._closed = False

    @classmethod
    async def open(
        cls,
        factory: ManagedLedgerFactory,
        topic: TopicName,
        cursor: ManagedCursor,
        outcomes: TransactionOutcomes,
        config: BrokerConfig,
    ) -> "PendingAcks":
        """Creates the log `pending_ack_log(topic, cursor.name)` if it does not exist."""
        ledger = await factory.open(topic.ledger_name)
        store = await PendingAckStore.open(factory, topic, cursor.name)
        pending = cls(topic, ledger, cursor, store, outcomes, config)
        try:
            await take_over(factory, topic, cursor.name, store)
            await store.replay(pending._apply)
            await pending._forget_acknowledged()
        except BaseException:  # an error, or an unload: the log must not stay open
            await store.close()
            raise
        pending._settle_all()
        return pending

    def _apply(self, record: Record) -> Pieces | None:
        """Returns the work that must be done in pieces, if any."""
        if isinstance(record, EndRecord):
            return self._apply_end(record)
        if isinstance(record, PassedOverRecord):
            self._restore_replayed(record.messages)
        elif isinstance(record, LifeRecord):
            self.lives.replay(record)
        elif record.cumulative:
            self.lives.came_since = False
            self._state.hold_cumulative(record)
        else:
            for ack in record.acks:
                self._state.hold(record.txn_id, ack)
        return None

    def _apply_end(self, record: EndRecord) -> Pieces | None:
        txn_id, commits = record.txn_id, record.action is TxnAction.COMMIT
        if not commits:
            self.lives.replay_abort(txn_id)
        if (held := self._state.transactions.get(txn_id)) is None:
            return None
        if not self._applying.fits(len(held)):
            if commits:
                return commit_in_pieces(self._state, txn_id)
            return abort_in_pieces(self._state, txn_id, self._restore_replayed)
        if commits:
            self._state.commit(txn_id)
        else:
            self._restore_replayed(self._state.drop(txn_id))
        return None

    def _restore_replayed(self, restored: Mapping[Position, Held]) -> None:
        for position, held in restored.items():
            self._replayed[position] = self._replayed.get(position, held) | held

    async def _forget_acknowledged(self) -> None:
        is_deleted, left = self._cursor.is_deleted, dict[Position, Held]()
        replayed = iter(self._replayed.items())
        while some := list(islice(replayed, _LOOKED_AT_A_TURN)):
            left.update((at, held) for at, held in some if not is_deleted(at))
            await asyncio.sleep(0)
        self._replayed = dict(sorted(left.items()))

    def follow(
        self,
        ended: Callable[[TxnId, TxnAction], object],
        commits: Callable[[AckRecord], object],
    ) -> None:
        """`ended` is called once an end is in effect, or nothing of the transaction was written;
        `commits` before the commit of a cumulative acknowledgement is logged, and before it moves
        the cursor.
        """
        self._on_ended, self._state.on_cumulative = ended, commits

    def tell_replayed(self) -> None:
        """Report to `on_restored` the released messages that replay has found in the log."""
        replayed, self._replayed = self._replayed, {}
        self.on_restored(None, replayed)

    # Messages that consumers must not receive and plain acknowledgements must not touch

    def is_pending(self, ledger_id: int, entry_id: int) -> bool:
        """Whether transactions individually hold the rest of this entry: it is not delivered."""
        return self._state.is_pending((ledger_id, entry_id))

    def pending_indexes(self, position: tuple[int, int]) -> int:
        """The indexes of a batch that open transactions hold individually, as bits."""
        return self._state.pending_indexes(position)

    def left_by(self, txn_id: TxnId, position: Position) -> int:
        """The bits of the entry that its cumulative acknowledgement does not cover."""
        held = self._state.transactions.get(txn_id)
        cumulative = None if held is None else held.cumulative
        return cumulative[-1].left_of(position) if cumulative else ALL_INDEXES

    @property
    def holds_singly(self) -> bool:
        """Whether any entries or batch indexes are held back from consumers."""
        return self._state.holds_singly

    def held_singly(self, after: Position, up_to: Position) -> Mapping[Position, Held]:
        """The messages held back from consumers, in the entries after `after` up to `up_to`; in any
        order.
        """
        return self._state.held_singly(after, up_to)

    @property
    def first_pending(self) -> Position | None:
        """The first entry of which open transactions have acknowledged at least a part."""
        return self._state.first()

    @property
    def cumulative_record(self) -> AckRecord | None:
        return self._state.cumulative_record()

    @property
    def cumulative_position(self) -> Position | None:
        cumulative = self._state.cumulative()
        return None if cumulative is None else cumulative.position

    def stats(self) -> list[PendingAckStats]:
        return [stats_of(txn_id, held) for txn_id, held in self._state.transactions.items()]

    def stats_of(self, txn_id: TxnId) -> PendingAckStats | None:
        """None if the transaction has acknowledged nothing here."""
        held = self._state.transactions.get(txn_id)
        return None if held is None else stats_of(txn_id, held)

    # Acknowledge

    def acknowledge(
        self,
        txn_id: TxnId,
        acks: Sequence[PendingAck],
        withheld: Callable[[], object] = do_nothing,
        taken: Callable[[], object] = do_nothing,
    ) -> asyncio.Future[None]:
        """Acknowledge all messages or none. Durable when the future completes; in effect when the
        transaction commits.

        `taken` is called before the record is logged, `withheld` once it is durable, before later
        events here. Raises TransactionConflict, InvalidTxnStatus, TransactionNotFound,
        TransactionCoordinatorNotFound; fails with PersistenceError.
        """
        self._check(txn_id, acks)
        try:
            self._state.take(txn_id, acks)
        except Conflict as conflict:
            raise self.conflict(txn_id, conflict.ack, conflict.reason) from None
        taken()
        return self._log(AckRecord(txn_id, False, acks), self._give_back, withheld)

    def acknowledge_cumulative(
        self,
        txn_id: TxnId,
        ack: PendingAck,
        not_given: Mapping[Position, Held] = NOTHING_HELD,
        life: int = 0,
        is_clear: bool = False,
        covered: Covered | None = None,
    ) -> asyncio.Future[None]:
        """Like `acknowledge`, for everything up to `ack`, except the messages that other
        transactions hold individually and those `not_given` to the consumer; or for `covered`.
        """
        self._check(txn_id, [ack])
        try:
            record = self._state.take_cumulative(txn_id, ack, not_given, life, is_clear, covered)
        except Conflict as conflict:
            raise self.conflict(txn_id, conflict.ack, conflict.reason) from None
        durable = partial(self._state.forget_before, record)
        return self._log(record, self._state.give_back_cumulative, durable)

    def conflict(self, txn_id: TxnId, ack: PendingAck, reason: str) -> TransactionConflict:
        """The answer to an acknowledgement that is refused."""
        what = f"{ack.what} of {self._topic} on subscription {self._cursor.name}"
        log.info("Transaction %s cannot acknowledge %s: %s", txn_id, what, reason)
        return TransactionConflict(f"Transaction {txn_id} cannot acknowledge {what}: {reason}")

    def _give_back(self, record: AckRecord) -> None:
        self._state.give_back(record.txn_id, record.acks)
        self.on_restored(
            record.txn_id,
            {
                ack.position: Held(ack.acked_indexes or ALL_INDEXES, ack.batch_size)
                for ack in sorted(record.acks, key=lambda ack: ack.position)
            },
        )
        if record.txn_id not in self._state.transactions:
            self._on_ended(record.txn_id, TxnAction.ABORT)

    def _check(self, txn_id: TxnId, acks: Sequence[PendingAck]) -> None:
        require_open(self._outcomes, txn_id)
        if not self._outcomes.has_subscription(txn_id, self._topic, self._cursor.name):
            raise InvalidTxnStatus(
                f"Transaction {txn_id} does not acknowledge on {self._topic}, subscription "
                f"{self._cursor.name}: add the subscription to it before acknowledging"
            )
        held = self._state.transactions.get(txn_id)
        if held is not None and held.ending is not None:
            raise InvalidTxnStatus(f"Transaction {txn_id} is being ended on {self._topic}")
        last = self._ledger.last_confirmed
        for ack in acks:
            if ack.position > last:
                raise self.conflict(txn_id, ack, f"the last message of the topic is {last}")
            if not (self._ledger.has_entry(ack.position) or self._cursor.is_deleted(ack.position)):
                raise self.conflict(txn_id, ack, "the topic has no message there")

    def _log(
        self, record: AckRecord, undo: Callable[[AckRecord], None], withheld: Callable[[], object]
    ) -> asyncio.Future[None]:
        durable: Prompt[None] = prompt()
        self._store.append(record, partial(self._logged, record, undo, withheld, durable))
        self._visit_later()
        self._checkpoint_if_long()
        return durable

    def _logged(
        self,
        record: AckRecord,
        undo: Callable[[AckRecord], None],
        withheld: Callable[[], object],
        durable: asyncio.Future[None],
        error: Exception | None,
    ) -> None:
        if error is None:
            withheld()
        else:
            undo(record)
        if durable.done():
            return  # the caller was cancelled
        if error is None:
            durable.set_result(None)
            return
        where = f"{self._topic}, subscription {self._cursor.name}"
        why = f"{where}: the acknowledgement was not written: {error}"
        fail(durable, PersistenceError(why))

    # End

    def end(
        self, txn_id: TxnId, action: TxnAction, not_later: bool = False
    ) -> asyncio.Future[None] | None:
        """End the transaction here. Durable and in effect when the future completes; None: the
        transaction acknowledged nothing here.

        After an abort, `on_restored` is called with the messages to deliver again. Fails with
        ManagedLedgerError; then retry. The future is shared: do not cancel it. `not_later`: fails
        with WouldWait if the record cannot be queued in the storage in this turn.
        """
        held = self._state.transactions.get(txn_id)
        return None if held is None else held.ending or self._start_end(txn_id, action, not_later)

    def _start_end(
        self, txn_id: TxnId, action: TxnAction, not_later: bool = False
    ) -> asyncio.Future[None]:
        held = self._state.transactions[txn_id]
        held.action = action
        if action is TxnAction.COMMIT:
            self._state.tell_commit(held)
        ending = held.ending = prompt()
        append = self._store.append_not_later if not_later else self._store.append
        append(EndRecord(txn_id, action), partial(self._end_logged, txn_id, action))
        return ending

    def _end_logged(self, txn_id: TxnId, action: TxnAction, error: Exception | None) -> None:
        held = self._state.transactions[txn_id]
        ending = held.ending
        assert ending is not None
        if error is not None:
            held.ending = held.action = None
            fail(ending, error)
            return
        if self._applying.fits(len(held)):
            if action is TxnAction.COMMIT:
                self._state.commit(txn_id)
            else:
                self.on_restored(txn_id, self._state.drop(txn_id))
            self._ended(txn_id, action, ending)
            return
        if action is TxnAction.COMMIT:
            pieces = commit_in_pieces(self._state, txn_id)
        else:
            pieces = abort_in_pieces(self._state, txn_id, partial(self._restored, txn_id))
        self._applying.start(pieces, partial(self._ended, txn_id, action, ending))

    def _restored(self, txn_id: TxnId, some: Mapping[Position, Held]) -> None:
        self.on_restored(txn_id, some)

    def _ended(self, txn_id: TxnId, action: TxnAction, ending: asyncio.Future[None]) -> None:
        self._on_ended(txn_id, action)
        ending.set_result(None)
        self._checkpoint_if_long()

    async def settled(self) -> None:
        """Wait until all ends that are durable by now are fully in effect. The cursor must not be
        moved back before.
        """
        await self._applying.settled()

    def _settle_all(self) -> None:
        """End the transactions that have ended elsewhere, a limited number per turn.

        Source: KIP-98, "correlated hard failures".
        """
        txn_ids = iter(list(self._state.transactions))
        self._visits.visit(txn_ids, self._settle, self._all_settled)

    def _all_settled(self) -> None:
        if self._state.transactions or self._store.records_since_snapshot:
            self._visit_later()

    def _settle(self, txn_id: TxnId) -> None:
        held = self._state.transactions.get(txn_id)
        if held is None or held.ending or self._closed:
            return
        with suppress(TransactionCoordinatorNotFound):  # not known yet: ask again later
            if (action := action_to_settle(self._outcomes, txn_id)) is not None:
                log.warning("%s: transaction %s was left open; ending it", self._topic, txn_id)
                self._start_end(txn_id, action)

    # Keeping the log short

    def _visit_later(self) -> None:
        if not self._closed:
            self._visits.visit_in(_CHECK_INTERVAL_S, self._visited)

    def _visited(self) -> None:
        """Repeated while transactions are open or the log can be shortened; idling costs
        nothing.
        """
        self._settle_all()
        if self._state.is_empty and self._store.records_since_snapshot:
            self._start_checkpoint()

    def _checkpoint_if_long(self) -> None:
        records = self._store.records_since_snapshot
        if records < self._log_entries:
            return
        given_back, lives = self.kept()
        if records >= 2 * (self._state.size + len(given_back) + len(lives)):
            self._start_checkpoint()

    def _start_checkpoint(self) -> None:
        if not len(self._tasks) and not self._closed:
            self._tasks.start(self._checkpoint_while_open(), "checkpoint")

    async def _checkpoint_while_open(self) -> None:
        with suppress(LedgerClosed):  # the subscription was deleted meanwhile
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Make the cursor durable and forget the transactions that have ended.

        Call it after the cursor was moved back: otherwise replay would acknowledge old entries
        again.
        """
        records = chain(self._state.records(), kept_records(self._state, self.kept, self._cursor))
        await self._store.replace_past(records, self._flush)

    async def _flush(self) -> None:
        """Ends from before the snapshot are recorded only in the cursor: make it durable."""
        await self.settled()
        await self._cursor.flush()

    async def close(self) -> None:
        """Shorten the log if possible, then close it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.lives.close()
        self._visits.cancel()
        await self._tasks.close()
        try:
            try:
                if self._store.records_since_snapshot:
                    await self.checkpoint()
            finally:  # closed even then, so that the next `open` reads it from the storage
                await self._store.close()
                await self.settled()  # the cursor will still be written
        except ManagedLedgerError as error:
            log.warning("%s: its pending-ack log could not be shortened: %s", self._topic, error)
