"""The transactions that wrote to a topic and have not ended there, ordered by their first entries.

Each one knows how far readers may go while it is the oldest. At first that is the last durable
entry when it began, or the last marker since then, both certainly before it; once its first append
is answered it is the position just before that append. Insertion order is the order of first
entries, so only the oldest one matters.
"""

import asyncio
from collections import OrderedDict
from collections.abc import ItemsView, Iterator

from managed_ledger.position import EARLIEST, Position
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.log_order.buffer_snapshot import OpenTransactionRecord
from pybroker.transaction.buffer.ongoing import Marked
from pybroker.transaction.buffer.transaction_ranges import TransactionRanges
from pybroker.transaction.buffer.transactional_entries import tag_of


class OpenTransaction:
    __slots__ = (
        "answered",
        "ending",
        "in_flight",
        "is_copy",
        "limit",
        "opened_at_ms",
        "ranges",
        "tag",
    )

    def __init__(self, txn_id: TxnId, limit: Position, opened_at_ms: int) -> None:
        self.tag = tag_of(txn_id)  # of its messages in the log
        self.limit = limit
        self.answered = False  # the first append has completed
        self.opened_at_ms = opened_at_ms
        self.ranges = TransactionRanges()
        self.in_flight = 0  # appends
        self.ending: asyncio.Future[Marked] | None = None  # set while the marker is on its way
        self.is_copy = False  # of a transaction kept aside: the copier ends it

    @property
    def is_empty(self) -> bool:
        """Nothing of it is in the log or on the way there."""
        return not (self.ranges or self.in_flight or self.ending)


class OpenTransactions:
    __slots__ = (
        "_by_id",
        "_copies",
        "last_marker",
        "range_count",
    )

    def __init__(self) -> None:
        # Not a dict: finding its first item would scan all deleted ones before it.
        self._by_id: OrderedDict[TxnId, OpenTransaction] = OrderedDict()
        self._copies: dict[TxnId, OpenTransaction] | None = None  # most topics never have one
        self.last_marker = EARLIEST  # the last durable one
        self.range_count = 0  # of all transactions: what a snapshot writes

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, txn_id: TxnId) -> OpenTransaction | None:
        return self._by_id.get(txn_id)

    def items(self) -> ItemsView[TxnId, OpenTransaction]:
        return self._by_id.items()

    def ids(self) -> list[TxnId]:
        return list(self._by_id)

    def oldest(self) -> TxnId | None:
        return next(iter(self._by_id), None)

    def limit(self) -> Position | None:
        """How far may be read; None: to the end."""
        for transaction in self._by_id.values():
            return self._limit_of(transaction)
        return None

    def _limit_of(self, transaction: OpenTransaction) -> Position:
        """Appends complete in order: one that has not completed yet is behind all markers, and so
        behind everything that they ended.
        """
        if transaction.answered:
            return transaction.limit
        return max(transaction.limit, self.last_marker)

    def begin(self, txn_id: TxnId, limit: Position, opened_at_ms: int) -> OpenTransaction:
        transaction = self._by_id[txn_id] = OpenTransaction(txn_id, limit, opened_at_ms)
        return transaction

    def begin_copy(self, txn_id: TxnId, limit: Position, opened_at_ms: int) -> OpenTransaction:
        transaction = self.begin(txn_id, limit, opened_at_ms)
        transaction.is_copy = True
        if self._copies is None:
            self._copies = {}
        self._copies[txn_id] = transaction
        return transaction

    def limit_of_copies(self) -> Position | None:
        """As `limit`, if only copies are in the way; otherwise None."""
        for copy in (self._copies or {}).values():
            return self._limit_of(copy)
        return None

    def appended(self, transaction: OpenTransaction, first: Position, count: int) -> bool:
        """`count` entries from `first` on are durable. True if readers may now go further."""
        ledger_id, entry_id = first
        self.range_count += transaction.ranges.extend(ledger_id, entry_id, entry_id + count - 1)
        if transaction.answered:
            return False
        transaction.answered = True
        transaction.limit = first.before
        return True

    def remove(self, txn_id: TxnId) -> None:
        self.range_count -= len(self._by_id.pop(txn_id).ranges)
        if self._copies:
            self._copies.pop(txn_id, None)

    def records(self) -> Iterator[OpenTransactionRecord]:
        """Those that are open now and have something in the log when their turn comes."""
        now_open = list(self._by_id.items())
        return (
            OpenTransactionRecord(txn_id, transaction.opened_at_ms, transaction.ranges)
            for txn_id, transaction in now_open
            if transaction.ranges
        )

    def restore(self, record: OpenTransactionRecord) -> None:
        """Oldest first."""
        position = record.ranges.first_position
        assert position is not None
        transaction = self.begin(record.txn_id, position.before, record.opened_at_ms)
        transaction.ranges = record.ranges
        transaction.answered = True
        self.range_count += len(record.ranges)
