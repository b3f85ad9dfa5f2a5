"""Wrong receipts, markers, outcomes and read positions."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import AsyncMock, patch

from managed_ledger.position import Position
from managed_ledger.storage.embedded.journal_writer import JournalWriter
from pybroker.base.errors import InvalidTxnStatus
from pybroker.broker.transactions.txn_participants import LocalParticipants
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.log_order.open_transactions import OpenTransactions
from pybroker.transaction.buffer.log_order.transaction_index import TransactionIndex
from pybroker.transaction.coordinator.metadata_store import TransactionMetadataStore
from pybroker.transaction.coordinator.outcome_window import OutcomeWindow
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.pending_acks.records import AckRecord


@contextmanager
def receipt_before_the_fsync() -> Iterator[None]:
    """A journal commit is acknowledged when written, not when synced."""
    right = JournalWriter.write

    def write(self: JournalWriter, group: Any, sync: bool, rotate: bool) -> None:
        right(self, group, False, rotate)

    with patch.object(JournalWriter, "write", write):
        yield


@contextmanager
def marker_skipped() -> Iterator[None]:
    """A topic reports a transaction as ended without a marker in its log."""

    def end(self: LogOrderBuffer, *_: Any) -> None:
        return None

    with patch.object(LogOrderBuffer, "end", end):
        yield


@contextmanager
def pending_ack_forgotten_at_recovery() -> Iterator[None]:
    """Replay omits acknowledgements of open transactions."""
    right = PendingAcks._apply

    def apply(self: PendingAcks, record: Any) -> Any:
        return None if isinstance(record, AckRecord) else right(self, record)

    with patch.object(PendingAcks, "_apply", apply):
        yield


@contextmanager
def outcome_dropped() -> Iterator[None]:
    """A coordinator does not remember how transactions ended."""
    with patch.object(OutcomeWindow, "record", lambda self, local_id, status: None):
        yield


@contextmanager
def outcomes_forgotten_at_recovery() -> Iterator[None]:
    """A restarted coordinator does not read how older transactions ended."""
    with patch.object(OutcomeWindow, "restore_chunk", lambda self, number, packed: None):
        yield


@contextmanager
def opposite_end_answered() -> Iterator[None]:
    """A request for the opposite end gets success."""
    right = TransactionMetadataStore.decide_end

    def decide_end(self: TransactionMetadataStore, *arguments: Any) -> Any:
        try:
            return right(self, *arguments)
        except InvalidTxnStatus:
            return None

    with patch.object(TransactionMetadataStore, "decide_end", decide_end):
        yield


@contextmanager
def max_read_position_moved_early() -> Iterator[None]:
    """Readers may pass a transaction when its end begins, not when its marker is durable."""

    def limit(self: OpenTransactions) -> Position | None:
        ongoing = (open_.limit for _, open_ in self.items() if open_.ending is None)
        return next(ongoing, None)

    with patch.object(OpenTransactions, "limit", limit):
        yield


@contextmanager
def left_open_and_not_asked_about() -> Iterator[None]:
    """A topic that is not loaded counts as having followed an end. Once loaded, it waits for the
    transactions that it finds open.
    """
    with (
        patch.object(LocalParticipants, "_when_loaded", lambda self, name, end, not_later: None),
        patch.object(LogOrderBuffer, "_settle", lambda self, txn_id: None),
    ):
        yield


@contextmanager
def trimmed_ones_hold_back() -> Iterator[None]:
    """A topic that is loaded waits for a transaction that was trimmed with its marker."""
    with patch.object(TransactionIndex, "forget_trimmed", AsyncMock()):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "receipt-before-the-fsync": receipt_before_the_fsync,
    "marker-skipped": marker_skipped,
    "pending-ack-forgotten-at-recovery": pending_ack_forgotten_at_recovery,
    "outcome-dropped": outcome_dropped,
    "outcomes-forgotten-at-recovery": outcomes_forgotten_at_recovery,
    "opposite-end-answered": opposite_end_answered,
    "left-open-and-not-asked-about": left_open_and_not_asked_about,
    "max-read-position-moved-early": max_read_position_moved_early,
    "trimmed-ones-hold-back": trimmed_ones_hold_back,
}
