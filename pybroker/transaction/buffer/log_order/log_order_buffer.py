"""Transactions in a topic's own log: how far readers may go, and which entries stay hidden.

    append   entries of open transactions go into the log like all others
    end      a marker follows them; when it is durable, the transaction has ended here
    hidden   markers, and the entries of aborted transactions, are never delivered

The oldest open transaction limits what readers see (`max_read_position`); all later messages wait.
A transaction is registered before its first entry is durable, so none is exposed in between.

The first transaction of a topic sets a ledger property, which is queued before the transaction's
first entry. Recovery loads the snapshot, and scans the log after it, only if the property exists.
It recognises transactions by tags, not by what clients wrote: see `transactional_entries`.

If a marker was lost, the outcome is requested: at recovery, by a timer, and by low watermarks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from functools import partial
from itertools import islice

from managed_ledger.appender import Appended
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.prompt import fail, prompt
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import (
    InvalidTxnStatus,
    PulsarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
)
from pybroker.base.names import TxnId, topic_of_ledger
from pybroker.base.runtime import Clock, Pace, Tasks, do_nothing
from pybroker.transaction.buffer.buffer_stats import BufferTimes, Marked, OngoingTransaction
from pybroker.transaction.buffer.log_order.ledger_mark import (
    LedgerMark,
    may_have_foreign_transactions,
)
from pybroker.transaction.buffer.log_order.open_transactions import OpenTransaction
from pybroker.transaction.buffer.log_order.transaction_index import (
    NONE_OPEN,
    NOTHING_HIDDEN,
    TransactionIndex,
    Undecided,
)
from pybroker.transaction.buffer.open_contents import OnEnded
from pybroker.transaction.buffer.transaction_ranges import TransactionRanges
from pybroker.transaction.buffer.transactional_entries import SINCE, marker, tag_of, with_sent
from pybroker.transaction.paced_visits import A_TURN, PacedVisits
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import (
    TransactionOutcomes,
    TxnAction,
    action_to_settle,
    require_open,
    require_partition,
)

log = logging.getLogger(__name__)


class LogOrderBuffer:
    """One topic's transactions, whose messages are in its log. `recover` reads what is stored."""

    _index: TransactionIndex  # this and `_mark` are set by `_keep_index`, at the first transaction
    _mark: LedgerMark

    __slots__ = (
        "_clock",
        "_config",
        "_index",
        "_ledger",
        "_live",
        "_mark",
        "_metadata",
        "_most_changes",
        "_open",
        "_outcomes",
        "_tasks",
        "_visits",
        "hidden",
        "on_ended",
        "stable_moved",
        "times",
        "written_first",
    )

    def __init__(
        self,
        ledger: ManagedLedger,
        metadata: MetadataStore,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
        stable_moved: Callable[[], None],
    ) -> None:
        self._ledger, self._metadata = ledger, metadata
        self._outcomes, self.stable_moved = outcomes, stable_moved
        self._clock, self._config = clock, config
        self._most_changes = config.transaction_buffer_snapshot_max_transaction_count
        self.on_ended: OnEnded = do_nothing
        self.hidden, self._open = NOTHING_HIDDEN, NONE_OPEN
        self.times = BufferTimes(recovery_began=clock.now_ms())
        self._tasks = Tasks(self)
        # Awaited before a snapshot: makes durable the ends that only the log has recorded so far.
        self.written_first: Callable[[], Awaitable[None]] | None = None
        self._visits = PacedVisits(
            ledger.housekeeper
        )  # while there is something to settle or write
        self._live = False  # incomplete state must not be written as a snapshot

    def _keep_index(self) -> None:
        """Called at the first transaction: a topic that never had one has no index of its own."""
        if self._open is NONE_OPEN:
            self._index = TransactionIndex(self._ledger, self._metadata)
            self.hidden, self._open = self._index.hidden, self._index.open
            self._mark = LedgerMark(self._ledger)
            self._ledger.on_visit += (self._start_snapshot_if_due,)

    @property
    def ledger(self) -> ManagedLedger:
        return self._ledger

    @property
    def _topic(self) -> str:
        return topic_of_ledger(self._ledger.name)

    def __str__(self) -> str:
        return f"The transaction buffer of {self._topic}"

    # Publish

    def append(
        self,
        txn_id: TxnId,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        done: Appended,
        sent: bytes | None = None,
    ) -> None:
        """As TopicTransactions.append."""
        try:
            require_open(self._outcomes, txn_id)
            transaction = self._open.get(txn_id) or self._begin(txn_id)
            if not self._mark.is_durable:
                self._mark.require(self._visit_later)  # the visit tries again
            if transaction.ending is not None:
                raise InvalidTxnStatus(f"Transaction {txn_id} is being ended on {self._topic}")
        except PulsarError as refusal:
            done(None, refusal)
            return
        transaction.in_flight += 1
        answered = partial(self._appended, txn_id, transaction, len(entries), done)
        tag = transaction.tag if sent is None else with_sent(sent, transaction.tag)
        self._ledger.append(entries, message_counts, answered, tag)

    def _begin(self, txn_id: TxnId) -> OpenTransaction:
        require_partition(self._outcomes, txn_id, self._topic)
        if self._open is NONE_OPEN:
            self._keep_index()
        if self._visits.due is None:
            self._visit_later()
        return self._open.begin(txn_id, self._ledger.last_confirmed, self._clock.now_ms())

    def _appended(
        self,
        txn_id: TxnId,
        transaction: OpenTransaction,
        count: int,
        done: Appended,
        first: Position | None,
        error: Exception | None,
    ) -> None:
        transaction.in_flight -= 1
        if first is None:
            transaction.answered = True
            self._drop_if_empty(txn_id)
        else:
            self._index.changes += 1
            if self._open.appended(transaction, first, count):
                self.stable_moved()
        done(first, error)

    def _drop_if_empty(self, txn_id: TxnId) -> None:
        """A transaction with nothing in the log or in flight must not hold readers back."""
        transaction = self._open.get(txn_id)
        if transaction is not None and transaction.is_empty:
            self._open.remove(txn_id)
            self.stable_moved()

    # End

    def end(
        self, txn_id: TxnId, action: TxnAction, low_watermark: int, not_later: bool = False
    ) -> "asyncio.Future[Marked] | None":
        """As TopicTransactions.end."""
        transaction = self._open.get(txn_id)
        ending = None
        if transaction is not None:
            if not_later and self._ledger.holds_appends:
                raise WouldWait
            ending = transaction.ending or self._append_marker(txn_id, transaction, action)
        oldest = self._open.oldest()
        if oldest is not None and oldest.most == txn_id.most and oldest.least <= low_watermark:
            self._settle(oldest)
        return ending

    def _append_marker(
        self, txn_id: TxnId, transaction: OpenTransaction, action: TxnAction
    ) -> "asyncio.Future[Marked]":
        """Append the marker after the transaction's entries, whether or not these are durable."""
        if not self._mark.is_durable:  # recovery would mistake the marker for a message
            self._mark.require(self._visit_later)
        ending = transaction.ending = prompt()
        entry = marker(txn_id, action, self._clock.now_ms())
        appended = partial(self._marker_appended, txn_id, transaction, action)
        self._ledger.append([entry], [0], appended, tag_of(txn_id, action))
        return ending

    def _marker_appended(
        self,
        txn_id: TxnId,
        transaction: OpenTransaction,
        action: TxnAction,
        position: Position | None,
        error: Exception | None,
    ) -> None:
        ending, transaction.ending = transaction.ending, None
        assert ending is not None
        if position is None:
            self._drop_if_empty(txn_id)  # all its appends may have failed
            fail(ending, error or RuntimeError("The marker was not written"))
            return
        marked = Marked(transaction.ranges.first_position, position)
        self._over(txn_id, transaction, action, marked)
        ending.set_result(marked)  # last: its waiters rely on the end being in effect

    def _over(
        self, txn_id: TxnId, transaction: OpenTransaction, action: TxnAction, marked: Marked
    ) -> None:
        """The transaction's marker is durable."""
        self._index.over(txn_id, transaction, action, marked.marker)
        self.on_ended(txn_id, action, marked.first)
        self.stable_moved()
        if self._index.changes >= self._most_changes:
            self._start_snapshot_if_due()

    def _settle(self, txn_id: TxnId) -> None:
        """End it here if it has ended elsewhere. Source: KIP-98, "correlated hard failures"."""
        transaction = self._open.get(txn_id)
        if transaction is None or transaction.ending is not None or transaction.is_copy:
            return
        try:
            action = action_to_settle(self._outcomes, txn_id)
        except TransactionCoordinatorNotFound:
            return  # the outcome is not known yet: ask again later
        if action is not None:
            what = "%s: transaction %s was left open; its outcome is %s"
            log.warning(what, self._topic, txn_id, action.name)
            self._append_marker(txn_id, transaction, action)

    # Copies of transactions kept aside (commit_order). Only the copier ends them.

    async def prepare_for_copies(self) -> None:
        """Make sure that recovery will look for copies. Raises ManagedLedgerError."""
        self._keep_index()
        await self._mark.durable()

    def copy(
        self,
        txn_id: TxnId,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        tag: bytes,
        done: Appended,
    ) -> None:
        """Append a part of the copy. Readers wait before it until the marker is durable."""
        transaction = self._open.get(txn_id)
        if transaction is None:
            last = self._ledger.last_confirmed
            transaction = self._open.begin_copy(txn_id, last, self._clock.now_ms())
        transaction.in_flight += 1
        answered = partial(self._appended, txn_id, transaction, len(entries), done)
        self._ledger.append(entries, message_counts, answered, tag)

    def end_copy(
        self,
        txn_id: TxnId,
        action: TxnAction,
        done: Callable[[Exception | None], None],
        over: Callable[[], None],
    ) -> None:
        """Append the marker after the copied entries; it fails if any of these fails. `done` is
        called when the marker is durable, or with the error; then `over`, when the end is in
        effect.
        """
        transaction = self._open.get(txn_id)
        assert transaction is not None
        transaction.in_flight += 1
        entry = marker(txn_id, action, self._clock.now_ms())
        ended = partial(self._copy_ended, txn_id, transaction, action, done, over)
        self._ledger.append([entry], [0], ended, tag_of(txn_id, action))

    def _copy_ended(
        self,
        txn_id: TxnId,
        transaction: OpenTransaction,
        action: TxnAction,
        done: Callable[[Exception | None], None],
        over: Callable[[], None],
        position: Position | None,
        error: Exception | None,
    ) -> None:
        transaction.in_flight -= 1
        if position is None:
            done(error or RuntimeError("The marker was not written"))
            return
        done(None)
        marked = Marked(transaction.ranges.first_position, position)
        self._over(txn_id, transaction, action, marked)
        over()

    def hide(self, position: Position) -> None:
        """Hide a copied entry that is not a message."""
        self.hidden.hide(position.ledger_id, position.entry_id, position.entry_id)

    def give_up_copy(self, txn_id: TxnId) -> bool:
        """Hide the existing part of a copy, which will be repeated. True if there is such a part:
        then call `write_snapshot` before the next copy, because the log does not record that it is
        hidden.
        """
        transaction = self._open.get(txn_id)
        if transaction is None:
            return False
        self._index.give_up(txn_id, transaction)
        self.stable_moved()
        return bool(transaction.ranges)

    async def write_snapshot(self) -> None:
        """Write the state at the time of the call. Raises ManagedLedgerError, ServiceNotReady."""
        while len(self._tasks):
            await self._tasks.ended()
        writing = self._tasks.start(self._snapshot(), "snapshot")
        await asyncio.wait([writing])
        if writing.cancelled():
            raise ServiceNotReady(f"{self._topic} is being unloaded: try again")
        writing.result()

    # What may be read

    @property
    def max_read_position(self) -> Position:
        """The last entry that may be read: after it an open transaction begins, or the log ends."""
        return self._open.limit() or self._ledger.last_confirmed

    def limit_of_copies(self) -> Position:
        return self._open.limit_of_copies() or self._ledger.last_confirmed

    def last_visible_position(self, up_to: Position | None = None) -> Position:
        """The newest deliverable entry, before `up_to` if given; entry id -1 if there is none."""
        position = up_to or self.max_read_position.after
        while (position := self._ledger.previous_position(position)).entry_id >= 0:
            visible = self.hidden.last_visible_up_to(*position)
            if visible >= 0:
                return Position(position.ledger_id, visible)
            position = Position(position.ledger_id, 0)
        return position

    def holds(self, txn_id: TxnId) -> bool:
        """Whether the transaction wrote here and has not ended."""
        return self._open.get(txn_id) is not None

    @property
    def has_open(self) -> bool:
        return bool(self._open)

    @property
    def open_count(self) -> int:
        return len(self._open)

    def oldest(self) -> OngoingTransaction | None:
        """The transaction that holds readers back, if any."""
        return next(self._ongoing(), None)

    def ongoing(self, most: int | None = None) -> list[OngoingTransaction]:
        """All open transactions, or the first `most`, ordered by their first entries."""
        return list(islice(self._ongoing(), most))

    def ranges_of(self, txn_id: TxnId) -> TransactionRanges:
        """The ranges of the transaction's durable entries here; empty if it has ended."""
        return TransactionRanges() if (it := self._open.get(txn_id)) is None else it.ranges

    def _ongoing(self) -> Iterator[OngoingTransaction]:
        return (
            OngoingTransaction(txn_id, transaction.ranges.first_position, transaction.opened_at_ms)
            for txn_id, transaction in self._open.items()
        )

    # Recovery

    @classmethod
    async def recover(
        cls,
        ledger: ManagedLedger,
        metadata: MetadataStore,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
        stable_moved: Callable[[], None],
        aside: Container[TxnId] = (),
        undecided: Undecided | None = None,
    ) -> "LogOrderBuffer":
        """`stable_moved` is called whenever `max_read_position` may have moved. `aside`: the
        transactions that the topic keeps aside, of which the log may have copies. `undecided`: see
        `TransactionIndex.forget_trimmed`.
        """
        buffer = cls(ledger, metadata, outcomes, clock, config, stable_moved)
        if SINCE in ledger.properties or may_have_foreign_transactions(ledger, metadata):
            try:
                await buffer._recover(aside, undecided)
            except BaseException:
                await buffer.stop()  # its state is incomplete; the next recovery starts over
                raise
        buffer.times.recovered, buffer._live = clock.now_ms(), True
        if buffer._open:
            buffer._visit_later()
        return buffer

    async def _recover(self, aside: Container[TxnId], undecided: Undecided | None) -> None:
        self._keep_index()
        await self._index.recover(self._clock, aside)
        await self._index.forget_trimmed(self._outcomes, undecided)
        pace = Pace(A_TURN)
        for txn_id in self._open.ids():
            self._settle(txn_id)
            await pace.step()

    # Snapshots and timed work

    def _visit_later(self) -> None:
        if self._live:
            # Never without a delay: an open transaction schedules the next visit at once.
            after_ms = max(100, self._config.transaction_buffer_snapshot_min_time_in_millis)
            self._visits.visit_in(after_ms / 1000, self._visited)

    def _visited(self) -> None:
        self._mark.require(self._visit_later)
        self._visits.visit(iter(self._open.ids()), self._settle, self._all_settled)

    def _all_settled(self) -> None:
        if self._open:
            self._visit_later()
        self._start_snapshot_if_due()

    def told_of_those_aside(self) -> tuple[list[TxnId], list[TxnId]]:
        """After recovery, once: see `TransactionIndex.take_aside`."""
        return ([], []) if self._open is NONE_OPEN else self._index.take_aside()

    def _start_snapshot_if_due(self) -> None:
        if not self._live or len(self._tasks):
            return
        if self._index.snapshot_pays(self._most_changes):
            self._tasks.start(self._snapshot(), "snapshot")

    async def _snapshot(self) -> None:
        """Never call this from the completion of an append: see TransactionIndex."""
        try:
            await self._index.snapshot(self.written_first)
        except (ManagedLedgerError, asyncio.CancelledError):
            if self._index.changes:
                self._visit_later()
            raise
        self.times.snapshot = self._clock.now_ms()

    async def close(self) -> None:
        """Write a snapshot, so that the next recovery scans nothing. Idempotent."""
        await self.stop()
        if self._open is NONE_OPEN or self._index.snapshot_position == self._ledger.last_confirmed:
            return
        try:
            self._mark.require(self._visit_later)
            await self._snapshot()
        except ManagedLedgerError as error:
            log.warning("%s: without a snapshot, recovery will read more: %s", self._topic, error)

    async def stop(self) -> None:
        """Stop writing: the topic is being deleted or unloaded."""
        self._live = False
        self._visits.cancel()
        await self._tasks.close()
