"""A transaction for threads, and several that end as one."""

from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, overload

from pybroker.base.names import TxnId
from pybroker.client.blocking.loop_thread import LoopThread
from pybroker.client.errors import AlreadyClosed, TransactionOutcomeUnknown
from pybroker.client.transactions import group, transaction
from pybroker.client.transactions.transaction import TxnState


class Transaction:
    """`with client.new_transaction() as txn:` commits at the end, and aborts on an exception."""

    def __init__(self, thread: LoopThread, core: transaction.Transaction) -> None:
        self._thread = thread
        self.core = core

    @property
    def txn_id(self) -> TxnId:
        """Picklable: another process may pass it to its client's attach_transaction."""
        return self.core.txn_id

    @property
    def state(self) -> TxnState:
        return self.core.state

    def commit(self, together_with: Sequence[TxnId] = ()) -> None:
        """Durable and visible when this returns.

        `together_with`: others, begun beside it, that commit by the same decision: all or none.
        What their own processes sent must have been answered. Differs: not with Apache Pulsar.

        Raises TransactionAborted if an operation had failed, TransactionOutcomeUnknown if the
        broker did not answer in time, InvalidTxnStatus if the transaction was aborted meanwhile;
        or if one of the others was: then it did not commit with them, and is to be aborted.
        """
        self._end(self.core.commit(together_with))

    def abort(self) -> None:
        """Nothing of the transaction becomes visible; its acknowledgements are taken back."""
        self._thread.call(self.core.abort())

    def join(self, topic: str) -> None:
        """Makes `topic` part of it ahead of a message. Raises what prevents that: InvalidTxnStatus,
        TransactionNotFound if it is over."""
        self._thread.call(self.core.joined(topic))

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(self.core.__aexit__(kind, error, traceback))

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """A commit that the client's close cuts short is none that did not happen."""
        try:
            self._thread.call(work)
        except AlreadyClosed as closed:
            if self.core.may_have_committed:
                raise TransactionOutcomeUnknown(self.txn_id) from closed
            raise


class TransactionGroup(Sequence[Transaction]):
    """`with client.new_transactions(2) as (a, b):` commits both at the end by one decision, and
    aborts both on an exception."""

    def __init__(self, thread: LoopThread, transactions: Sequence[Transaction]) -> None:
        self._thread = thread
        self._transactions = tuple(transactions)
        self._core = group.TransactionGroup([each.core for each in transactions])

    @overload
    def __getitem__(self, index: int) -> Transaction: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Transaction]: ...
    def __getitem__(self, index: int | slice) -> Transaction | Sequence[Transaction]:
        return self._transactions[index]

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._transactions)

    def commit(self) -> None:
        """All or none; durable and visible when this returns. See pybroker.client.aio."""
        self._end(self._core.commit())

    def abort(self) -> None:
        """All of them. Raises the first failure, when each was asked for."""
        self._thread.call(self._core.abort())

    def __enter__(self) -> "TransactionGroup":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(self._core.__aexit__(kind, error, traceback))

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """As for a single one: a commit that is cut short may have happened."""
        try:
            self._thread.call(work)
        except AlreadyClosed as closed:
            unknown = [each.txn_id for each in self._core if each.may_have_committed]
            if unknown:
                raise TransactionOutcomeUnknown(unknown[0]) from closed
            raise


def core_of(txn: Transaction | None) -> transaction.Transaction | None:
    return None if txn is None else txn.core
