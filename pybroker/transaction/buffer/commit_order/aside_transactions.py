"""The transactions that a topic keeps aside, ordered by their first entries."""

from collections import OrderedDict
from collections.abc import ItemsView, Iterator

from managed_ledger.position import Position
from managed_ledger.prompt import Prompt, fail
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.transaction_ranges import TransactionRanges
from pybroker.transaction.buffer.transactional_entries import tag_of
from pybroker.transaction.txn_status import TxnAction


class AsideTransaction:
    __slots__ = (
        "action",
        "ending",
        "given_up",
        "in_flight",
        "opened_at_ms",
        "ranges",
        "size_bytes",
        "tag",
    )

    def __init__(self, txn_id: TxnId, opened_at_ms: int) -> None:
        self.tag = tag_of(txn_id)
        self.opened_at_ms = opened_at_ms
        self.ranges = TransactionRanges()  # in the side log
        self.size_bytes = 0  # of the entries in `ranges`
        self.in_flight = 0  # appends
        self.ending: Prompt[None] | None = None  # set while it is being copied or aborted
        self.action = TxnAction.COMMIT  # the kind of end
        # The topic's log has an incomplete copy, which is hidden; only a snapshot records that.
        self.given_up = False

    def followed(self) -> None:
        """Complete the end. Its waiters are called within this call, and rely on the end being in
        effect.
        """
        ending, self.ending = self.ending, None
        if ending is not None and not ending.done():  # otherwise the topic is being unloaded
            ending.set_result(None)

    def failed(self, error: BaseException) -> None:
        ending, self.ending = self.ending, None
        if ending is not None:
            fail(ending, error)


class AsideTransactions:
    __slots__ = ("_by_id", "size_bytes")

    def __init__(self) -> None:
        self._by_id: OrderedDict[TxnId, AsideTransaction] = OrderedDict()
        self.size_bytes = 0  # of all transactions

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, txn_id: object) -> bool:
        return txn_id in self._by_id

    def __iter__(self) -> Iterator[TxnId]:
        return iter(self._by_id)

    def get(self, txn_id: TxnId) -> AsideTransaction | None:
        return self._by_id.get(txn_id)

    def items(self) -> ItemsView[TxnId, AsideTransaction]:
        return self._by_id.items()

    def oldest(self) -> TxnId | None:
        return next(iter(self._by_id), None)

    def begin(self, txn_id: TxnId, opened_at_ms: int) -> AsideTransaction:
        transaction = self._by_id[txn_id] = AsideTransaction(txn_id, opened_at_ms)
        return transaction

    def appended(
        self, transaction: AsideTransaction, first: Position, count: int, size_bytes: int
    ) -> None:
        transaction.ranges.extend(first.ledger_id, first.entry_id, first.entry_id + count - 1)
        transaction.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def remove(self, txn_id: TxnId) -> None:
        self.size_bytes -= self._by_id.pop(txn_id).size_bytes
