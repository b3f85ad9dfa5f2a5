"""The transactions that wrote to a topic and have not ended there, ordered by their first entries.

Each transaction limits how far readers may go while it is the oldest. At first the limit is the
last durable entry when the transaction began, or the last marker since then: both are certainly
before its own entries. Once its first append is answered, the limit is the position just before
that append. Insertion order is the order of first entries, so only the oldest transaction matters.
"""

import asyncio
from collections import OrderedDict
from collections.abc import ItemsView, Iterator

from managed_ledger.position import EARLIEST, Position
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.buffer_stats import Marked
from pybroker.transaction.buffer.log_order.buffer_snapshot import OpenTransactionRecord
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
        self.ending: asyncio.Future[Marked] | None = None  # set while the marker is in flight
        self.is_copy = False  # of a transaction kept aside: the copier ends it

    @property
    def is_empty(self) -> bool:
        """Whether the transaction has nothing in the log or in flight."""
        return not (self.ranges or self.in_flight or self.ending)


class OpenTransactions:
    __slots__ = (
        "_by_id",
        "_copies",
        "last_marker",
        "range_count",
    )

    def __init__(self) -> None:
        # Not a dict: finding the first item of a dict means scanning the deleted ones before it.
        self._by_id: OrderedDict[TxnId, OpenTransaction] = OrderedDict()
        self._copies: dict[TxnId, OpenTransaction] | None = None  # most topics never have one
        self.last_marker = EARLIEST  # the position of the last durable marker
        self.range_count = 0  # of all transactions: a snapshot writes as many

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
        """The position up to which readers may go; None: to the end of the log."""
        for transaction in self._by_id.values():
            return self._limit_of(transaction)
        return None

    def _limit_of(self, transaction: OpenTransaction) -> Position:
        """Appends complete in order, so an append in flight comes after all durable markers, and
        after the entries of the transactions that they ended.
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
        """Like `limit`, for readers of uncommitted messages, who wait only for copies."""
        for copy in (self._copies or {}).values():
            return self._limit_of(copy)
        return None

    def appended(self, transaction: OpenTransaction, first: Position, count: int) -> bool:
        """`count` entries from `first` on are durable. True if readers may go further now."""
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
        """The records of transactions that are open now and have durable entries when requested."""
        now_open = list(self._by_id.items())
        return (
            OpenTransactionRecord(txn_id, transaction.opened_at_ms, transaction.ranges)
            for txn_id, transaction in now_open
            if transaction.ranges
        )

    def restore(self, record: OpenTransactionRecord) -> None:
        """Call it for the oldest transaction first."""
        position = record.ranges.first_position
        assert position is not None
        transaction = self.begin(record.txn_id, position.before, record.opened_at_ms)
        transaction.ranges = record.ranges
        transaction.answered = True
        self.range_count += len(record.ranges)
