"""Blocking transactions, and groups of them that commit together."""

from collections.abc import Coroutine, Sequence
from typing import Any, Self

from pybroker.base.names import TxnId
from pybroker.client.blocking.loop_thread import LoopThread
from pybroker.client.errors import AlreadyClosed, TransactionOutcomeUnknown
from pybroker.client.transactions import group, transaction
from pybroker.client.transactions.transaction import TxnState


class _EndsWithItsBlock:
    """The part that transactions and groups of them share."""

    def __init__(
        self, thread: LoopThread, core: transaction.Transaction | group.TransactionGroup
    ) -> None:
        self._thread = thread
        self._core = core
        self._parts = core if isinstance(core, group.TransactionGroup) else (core,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._end(self._core.__aexit__(*failure))

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        """If closing the client interrupts a commit, the transaction may have committed."""
        try:
            self._thread.call(work)
        except AlreadyClosed as closed:
            unknown = [each.txn_id for each in self._parts if each.may_have_committed]
            if unknown:
                raise TransactionOutcomeUnknown(unknown[0]) from closed
            raise


class Transaction(_EndsWithItsBlock):
    """`with client.new_transaction() as txn:` commits at the end, and aborts on an exception."""

    def __init__(self, thread: LoopThread, core: transaction.Transaction) -> None:
        super().__init__(thread, core)
        self.core = core

    @property
    def txn_id(self) -> TxnId:
        """Picklable: another process may pass it to its client's attach_transaction."""
        return self.core.txn_id

    @property
    def state(self) -> TxnState:
        return self.core.state

    def commit(self, together_with: Sequence[TxnId] = ()) -> None:
        """The commit is durable and visible when this returns.

        `together_with`: transactions begun with `beside` that commit atomically with this one.
        Their own processes must have received all receipts. Differs: not with Apache Pulsar.

        Raises TransactionAborted if an operation failed, TransactionOutcomeUnknown if the broker
        did not answer in time, InvalidTxnStatus if the transaction was aborted meanwhile, or if one
        of the others was: then none has committed, and you should abort this one.
        """
        self._end(self.core.commit(together_with))

    def prepare(self, name: str = "") -> None:
        """From now on only `commit` and `abort` end it, of this client or another one of its owner.
        All that it did is durable when this returns. See pybroker.client.aio.
        """
        self._thread.call(self.core.prepare(name))

    def abort(self) -> None:
        """Nothing of the transaction becomes visible; its acknowledgements are undone."""
        self._thread.call(self.core.abort())

    def join(self, topic: str) -> None:
        """Adds `topic` to the transaction before a message is sent. Raises InvalidTxnStatus or
        TransactionNotFound if the transaction has ended."""
        self._thread.call(self.core.joined(topic))


class TransactionGroup(_EndsWithItsBlock, group.Together[Transaction]):
    """`with client.new_transactions(2) as (a, b):` commits both atomically at the end, and
    aborts both on an exception."""

    def __init__(self, thread: LoopThread, transactions: Sequence[Transaction]) -> None:
        core = group.TransactionGroup([each.core for each in transactions])
        _EndsWithItsBlock.__init__(self, thread, core)
        group.Together.__init__(self, transactions)

    def commit(self) -> None:
        """Commits all or none; durable and visible when this returns. See pybroker.client.aio."""
        self._end(self._core.commit())

    def prepare(self, name: str = "") -> None:
        """Prepares all of them, or aborts all and raises why. See pybroker.client.aio."""
        self._thread.call(self._core.prepare(name))

    def abort(self) -> None:
        """Aborts all of them, then raises the first failure."""
        self._thread.call(self._core.abort())


def core_of(txn: Transaction | None) -> transaction.Transaction | None:
    return None if txn is None else txn.core
