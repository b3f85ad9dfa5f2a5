"""The state of a log-order buffer, and its recovery from a snapshot and the log after it.

The snapshot covers the log up to its position; recovery scans the rest. Entries that both cover do
no harm. A snapshot may name a transaction that was trimmed since, along with its marker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container
from contextlib import suppress
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.errors import TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock, Pace
from pybroker.transaction.buffer.log_order.aborted_txns import HiddenEntries
from pybroker.transaction.buffer.log_order.buffer_snapshot import (
    BufferHead,
    BufferSnapshots,
    encode_buffer_head,
)
from pybroker.transaction.buffer.log_order.open_transactions import (
    OpenTransaction,
    OpenTransactions,
)
from pybroker.transaction.buffer.transactional_entries import (
    SINCE,
    TAGGED_SINCE,
    TransactionalEntries,
    UntaggedSpan,
    parse_position,
    position_text,
    transactional_entries,
)
from pybroker.transaction.paced_visits import A_TURN
from pybroker.transaction.txn_status import UNDECIDED, TransactionOutcomes, TxnAction

_SCAN_ENTRIES: Final = 1000
_SCAN_BYTES: Final = 4 * 1024 * 1024
_SNAPSHOT_FROM_ENTRIES: Final = 100  # fewer are scanned as fast as a snapshot is read
_SCAN_LIMIT_ENTRIES: Final = 10_000  # including plain entries; more than this justify a snapshot
# Writing a range into a snapshot costs as much as publishing four messages, or reading six. With
# this many entries per range, snapshots cost only a fraction of the entries themselves.
_ENTRIES_PER_RANGE: Final = 16

# For topics without transactions; never changed.
NOTHING_HIDDEN: Final = HiddenEntries()
NONE_OPEN: Final = OpenTransactions()


# Finds the transactions whose ends deduplication does not know. Raises ManagedLedgerError.
Undecided = Callable[[], Awaitable[Container[TxnId]]]


class TransactionIndex:
    """The open transactions and hidden entries of one topic's log, from its first transaction
    on.
    """

    __slots__ = (
        "_ended_aside",
        "_given_up",
        "_gone_up_to",
        "_ledger",
        "_metadata",
        "_trimmed",
        "changes",
        "hidden",
        "open",
        "snapshot_position",
    )

    def __init__(self, ledger: ManagedLedger, metadata: MetadataStore) -> None:
        self._ledger, self._metadata = ledger, metadata
        self.hidden, self.open = HiddenEntries(), OpenTransactions()
        ledger.trimmer.on_trimmed += (self.ledger_trimmed,)
        self.snapshot_position = ledger.last_confirmed
        # The id of the last trimmed ledger. A trim in progress does not count: it may fail.
        self.changes, self._gone_up_to = 0, -1
        self._trimmed: list[int] = []
        # Transactions kept aside that recovery has found: see `take_aside`.
        self._ended_aside: list[TxnId] = []
        self._given_up: list[TxnId] = []

    @property
    def snapshots(self) -> BufferSnapshots:
        return BufferSnapshots(self._metadata, self._ledger.name)

    def over(
        self, txn_id: TxnId, transaction: OpenTransaction, action: TxnAction, position: Position
    ) -> None:
        """The transaction's marker is durable at `position`: forget it, and hide its entries if it
        was aborted.
        """
        if action is TxnAction.ABORT:
            self.hide(transaction)
        self.hidden.hide(position.ledger_id, position.entry_id, position.entry_id)
        self.open.last_marker = position
        self.open.remove(txn_id)
        self.changes += 1

    def give_up(self, txn_id: TxnId, transaction: OpenTransaction) -> None:
        """Hide an incomplete copy for good. Only the next snapshot records this."""
        self.hide(transaction)
        self.open.remove(txn_id)
        self.changes += 1

    def hide(self, transaction: OpenTransaction) -> None:
        for ledger_id, first, last in transaction.ranges:
            if ledger_id > self._gone_up_to:
                self.hidden.hide(ledger_id, first, last)

    # Recovery

    async def recover(self, clock: Clock, aside: Container[TxnId]) -> None:
        """Raises ManagedLedgerError; then the state is incomplete."""
        if SINCE not in self._ledger.properties:  # Apache Pulsar's broker wrote the whole log
            begin = position_text(self._ledger.first_position.before)
            await self._ledger.update_properties({SINCE: begin, TAGGED_SINCE: begin})
        if TAGGED_SINCE not in self._ledger.properties:  # the last writer did not know tags
            end = position_text(self._ledger.last_confirmed)
            await self._ledger.set_property(TAGGED_SINCE, end)
        head = self.snapshots.head()
        if head is None:
            head = BufferHead(parse_position(self._ledger.properties[SINCE]), [])
        self._restore(head)
        position, end_position = head.position.after, self._ledger.last_confirmed
        untagged = UntaggedSpan.of(self._ledger.properties)
        while run := await self._ledger.read_whole(
            position, end_position, _SCAN_ENTRIES, _SCAN_BYTES
        ):
            for entries in transactional_entries(run, untagged):
                self.replay(entries, clock)
                if entries.action is not None and entries.txn_id in aside:
                    self._ended_aside.append(entries.txn_id)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
        for txn_id, transaction in list(self.open.items()):
            if txn_id in aside:
                self.give_up(txn_id, transaction)
                self._given_up.append(txn_id)

    async def forget_trimmed(
        self, outcomes: TransactionOutcomes, find_undecided: Undecided | None
    ) -> None:
        """After recovery. Forget the transactions of which no entry is left here. Their markers
        were trimmed with them, or they have nothing to show or to hide: readers, who may have
        passed them, need not wait until their outcomes are known.

        Those stay that have certainly not ended here: a coordinator says that they are open, or
        deduplication waits for their ends. The log keeps what deduplication does not know yet, so
        their markers were not trimmed. Raises ManagedLedgerError.
        """
        pace, trimmed = Pace(A_TURN), list[TxnId]()
        for txn_id, transaction in list(self.open.items()):
            last = transaction.ranges.last_ledger_id
            if last is not None and last <= self._gone_up_to:
                trimmed.append(txn_id)
            await pace.step()
        undecided = await find_undecided() if trimmed and find_undecided is not None else ()
        for txn_id in trimmed:
            if txn_id not in undecided and not _is_open(outcomes, txn_id):
                self.open.remove(txn_id)
            await pace.step()

    def take_aside(self) -> tuple[list[TxnId], list[TxnId]]:
        """The transactions kept aside that ended after the snapshot, and those with an incomplete
        copy, which is hidden now. Once: the next call returns none.
        """
        found = self._ended_aside, self._given_up
        self._ended_aside, self._given_up = [], []
        return found

    def _restore(self, head: BufferHead) -> None:
        self.snapshot_position = head.position
        self._gone_up_to = self._ledger.first_position.ledger_id - 1
        for ledger_id, value in self.snapshots.hidden().items():
            if ledger_id > self._gone_up_to:
                self.hidden.restore(ledger_id, value)
            else:
                self._trimmed.append(ledger_id)
        for record in sorted(head.open_transactions, key=lambda record: record.ranges.flat[:2]):
            self.open.restore(record)

    def replay(self, entries: TransactionalEntries, clock: Clock) -> None:
        txn_id, action, first, count = entries
        transaction = self.open.get(txn_id)
        if transaction is None:
            transaction = self.open.begin(txn_id, first.before, clock.now_ms())
        if action is None:
            self.open.appended(transaction, first, count)
        else:
            self.over(txn_id, transaction, action, first)

    # Snapshots

    def snapshot_pays(self, max_changes: int) -> bool:
        """Whether a snapshot, which contains all open transactions completely, costs less than the
        scan that it saves.
        """
        unread = self._ledger.count_between(self.snapshot_position, self._ledger.last_confirmed)
        many = unread >= min(_SNAPSHOT_FROM_ENTRIES, max_changes)
        pays = many and self.changes > self.open.range_count
        return pays or unread > max(_SCAN_LIMIT_ENTRIES, _ENTRIES_PER_RANGE * self.open.range_count)

    async def snapshot(self, written_first: Callable[[], Awaitable[None]] | None) -> None:
        """Capture the state in one step, then write it. Never call this from the completion of an
        append: `last_confirmed` must agree with the completions so far. Appends in flight are left
        to the next scan. `written_first` makes durable the ends that the next recovery will not
        find in the log.
        """
        position = self._ledger.last_confirmed
        open_now = self.open.records()
        hidden, trimmed = self.hidden.take_changes(), self._trimmed
        self._trimmed = []
        changes, self.changes = self.changes, 0
        try:
            if written_first is not None:
                await written_first()
            head = await encode_buffer_head(position, open_now)
            await self.snapshots.write(head, hidden, lambda: self._ledger.still_owned)
            await self.snapshots.drop_ledgers(trimmed)
        except (ManagedLedgerError, asyncio.CancelledError):
            self.hidden.changed_again(hidden)
            self._trimmed += trimmed
            self.changes += changes
            raise
        self.snapshot_position = position

    def ledger_trimmed(self, ledger_id: int) -> None:
        self._gone_up_to = ledger_id
        self.hidden.drop_ledger(ledger_id)
        self._trimmed.append(ledger_id)


def _is_open(outcomes: TransactionOutcomes, txn_id: TxnId) -> bool:
    with suppress(TransactionCoordinatorNotFound):
        return outcomes.status(txn_id) in UNDECIDED
    return False
