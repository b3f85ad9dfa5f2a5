"""Several transactions that end as one: one decision commits all of them, or none commits.

    async with await client.new_transactions(2) as (debits, credits):
        await debit_producer.send(b"-10", txn=debits)
        await credit_producer.send(b"+10", txn=credits)

Differs: not with Apache Pulsar, where a group of two or more raises NotAllowed.
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, TypeVar, overload

from pybroker.base.errors import InvalidTxnStatus, NotAllowed, TransactionNotFound
from pybroker.client.errors import InvalidConfiguration, PulsarException, TransactionAborted
from pybroker.client.transactions.coordinator import Coordinators
from pybroker.client.transactions.transaction import TXN_STATES, Transaction, TxnState

T = TypeVar("T")

MAX_IN_GROUP: Final = 1000

# Errors that mean: none was committed, and they never will be together.
_REFUSED: Final = (InvalidTxnStatus, NotAllowed, TransactionNotFound, TransactionAborted)


class Together(Sequence[T]):
    """The transactions of a group, in their order."""

    def __init__(self, transactions: Sequence[T]) -> None:
        self._transactions = tuple(transactions)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._transactions[index]

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[T]:
        return iter(self._transactions)


class TransactionGroup(Together[Transaction]):
    """Use it as `async with`: all commit at the end of the block; an exception aborts all."""

    async def commit(self) -> None:
        """Commits all or none; durable and visible when this returns. See `commit_together`."""
        await commit_together(self._transactions)

    async def prepare(self, name: str = "") -> None:
        """Prepares all of them; if one cannot be, aborts all and raises why. See
        Transaction.prepare. Another client commits them with `commit(together_with=…)`.
        """
        made = await asyncio.gather(
            *(each.prepare(name) for each in self._transactions), return_exceptions=True
        )
        for refused in made:
            if isinstance(refused, BaseException):
                await _abort_because(self._transactions, refused)
                raise refused

    async def abort(self) -> None:
        """Aborts all of them, then raises the first failure."""
        failures = await _abort_all(self._transactions)
        if failures:
            raise failures[0]

    async def __aenter__(self) -> "TransactionGroup":
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        if all(each.state is not TxnState.OPEN for each in self._transactions):
            return
        if error is None:
            await self.commit()
        else:
            await _abort_because(self._transactions, error)


async def begin_together(
    coordinators: Coordinators,
    count: int,
    timeout_ms: int,
    namespace: str | None = None,
    abort_on_disconnect: bool = False,
) -> TransactionGroup:
    """Raises NotAllowed, before anything begins, if the broker cannot commit them together."""
    if not 1 <= count <= MAX_IN_GROUP:
        raise InvalidConfiguration(
            f"A group must have 1 to {MAX_IN_GROUP} transactions, not {count}"
        )
    if count > 1 and not await coordinators.commits_together():
        raise NotAllowed("This broker cannot commit several transactions atomically")
    begin = partial(
        coordinators.new_transaction,
        timeout_ms,
        namespace=namespace,
        abort_on_disconnect=abort_on_disconnect,
    )
    leader = await begin()
    others = (begin(beside=leader.txn_id) for _ in range(count - 1))
    begun = [leader, *await asyncio.gather(*others, return_exceptions=True)]
    transactions = [each for each in begun if isinstance(each, Transaction)]
    failures = [each for each in begun if isinstance(each, BaseException)]
    if failures:
        await _abort_because(transactions, failures[0])
        raise failures[0]
    return TransactionGroup(transactions)


async def commit_together(transactions: Sequence[Transaction]) -> None:
    """Commits all or none; durable and visible when this returns. The first one becomes visible
    last: a reader that sees a part of it also finds the messages of the others.

    Raises TransactionAborted if an operation of any of them failed, InvalidTxnStatus if one was
    aborted meanwhile or has committed alone (all others are aborted then), and
    TransactionOutcomeUnknown if the broker did not answer in time: call this again to find out.
    """
    if not transactions:
        return
    transactions = list(dict.fromkeys(transactions))
    await _require_may_commit(transactions)
    leader, *others = transactions
    try:
        for each in transactions:
            each.move_to(TxnState.COMMITTING)
        await asyncio.gather(*(each.settle_operations() for each in transactions))
        _require_complete(transactions)
        await leader.end(commit=True, together_with=[each.txn_id for each in others])
    except _REFUSED as refusal:
        await _abort_because(transactions, refusal)
        raise
    except BaseException:
        for each in transactions:
            if each.state is TxnState.COMMITTING:
                each.state = TxnState.UNKNOWN
            each.may_have_committed = leader.may_have_committed
        raise
    for each in others:
        each.state = TxnState.COMMITTED


async def _require_may_commit(transactions: Sequence[Transaction]) -> None:
    over = [each for each in transactions if TxnState.COMMITTING not in TXN_STATES[each.state]]
    if over:
        refusal = InvalidTxnStatus(
            f"Transaction {over[0].txn_id} is {over[0].state.value}: it cannot commit in a group; "
            "begin new ones"
        )
        await _abort_because([each for each in transactions if each not in over], refusal)
        raise refusal


def _require_complete(transactions: Sequence[Transaction]) -> None:
    for each in transactions:
        if each.failure is not None:
            raise TransactionAborted(
                f"{len(transactions)} transactions were aborted instead of committed because an "
                f"operation of {each.txn_id} failed: {each.failure}"
            ) from each.failure


async def _abort_because(transactions: Sequence[Transaction], error: BaseException) -> None:
    """Aborts them. A failure becomes a note on `error`; that transaction will time out."""
    for trouble in await _abort_all(transactions):
        error.add_note(f"A transaction of the group could not be aborted: {trouble}")


async def _abort_all(transactions: Sequence[Transaction]) -> list[PulsarException]:
    """Aborts those that may still be open. Returns the failures."""
    open_yet = [each for each in transactions if TxnState.ABORTING in TXN_STATES[each.state]]
    ends = await asyncio.gather(*(each.abort() for each in open_yet), return_exceptions=True)
    for ended in ends:
        if isinstance(ended, BaseException) and not isinstance(ended, PulsarException):
            raise ended
    return [ended for ended in ends if isinstance(ended, PulsarException)]
