"""A transaction for threads."""

from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any

from pybroker.base.names import TxnId
from pybroker.client.blocking.loop_thread import LoopThread
from pybroker.client.errors import AlreadyClosed, TransactionOutcomeUnknown
from pybroker.client.transactions import transaction
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


def core_of(txn: Transaction | None) -> transaction.Transaction | None:
    return None if txn is None else txn.core
