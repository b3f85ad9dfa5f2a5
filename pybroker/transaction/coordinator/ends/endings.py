"""The ends in progress of one coordinator's transactions, and the requests that wait for them.

A request waits for one of two events: all participants have ended the transaction, or the decision
is durable, if the request will be refused because of it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from managed_ledger.prompt import Prompt, fail, prompt, when_done
from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TxnId


class _Ending:
    __slots__ = ("decided", "followed", "refused")

    def __init__(self) -> None:
        self.decided = False  # the decision is durable
        # Futures that fail once the decision is durable, with their errors.
        self.refused: list[tuple[asyncio.Future[Any], InvalidTxnStatus]] = []
        # Futures that complete once all participants have followed.
        self.followed: list[asyncio.Future[TxnId]] = []


class Endings:
    """The ends of one coordinator, by local id."""

    def __init__(self, coordinator_id: int) -> None:
        self._coordinator_id = coordinator_id
        self._running: dict[int, _Ending] = {}

    def begin(self, local_id: int) -> None:
        self._running[local_id] = _Ending()

    def decided(self, local_id: int) -> None:
        """The decision is durable: fail the requests that it refuses."""
        running = self._running[local_id]
        running.decided = True
        for refused, error in running.refused:
            fail(refused, error)

    def over(self, local_id: int) -> None:
        """All participants have ended the transaction: complete the futures that wait for this."""
        txn_id = TxnId(self._coordinator_id, local_id)
        for followed in self._running.pop(local_id).followed:
            if not followed.done():
                followed.set_result(txn_id)

    def fail(self, error: Exception) -> None:
        """Fail all waiting requests."""
        ends = list(self._running.values())
        for waiting in [each for end in ends for each in end.followed]:
            fail(waiting, error)
        for waiting in [each for end in ends for each, _ in end.refused]:
            fail(waiting, error)

    def is_undecided(self, local_id: int) -> bool:
        """Whether an end is in progress whose decision is not durable yet."""
        running = self._running.get(local_id)
        return running is not None and not running.decided

    def following(self, local_id: int) -> asyncio.Future[TxnId]:
        """Completes when all participants have ended the transaction: at once if no end is in
        progress.
        """
        followed: Prompt[TxnId] = prompt()
        running = self._running.get(local_id)
        if running is None:
            followed.set_result(TxnId(self._coordinator_id, local_id))
        else:
            running.followed.append(followed)
        return followed

    def all_followed(self, local_ids: Sequence[int]) -> asyncio.Future[TxnId]:
        """Like `following`, for several transactions; the result is the id of the last one. A
        caller that gives up must cancel the future: an end may take long and be requested
        repeatedly, and waiters would accumulate.
        """
        all_followed: Prompt[TxnId] = prompt()
        last = TxnId(self._coordinator_id, local_ids[-1])
        waiting = {each: self.following(each) for each in dict.fromkeys(local_ids)}
        left = len(waiting)

        def one_followed(followed: asyncio.Future[TxnId]) -> None:
            nonlocal left
            left -= 1
            if (error := followed.exception()) is not None:
                fail(all_followed, error)
            elif not left and not all_followed.done():
                all_followed.set_result(last)

        for followed in waiting.values():
            when_done(followed, one_followed)
        all_followed.then(partial(self._withdraw, waiting))
        return all_followed

    def _withdraw(
        self, waiting: Mapping[int, asyncio.Future[TxnId]], all_followed: asyncio.Future[TxnId]
    ) -> None:
        if not all_followed.cancelled():
            return
        for local_id, followed in waiting.items():
            running = self._running.get(local_id)
            if running is not None and followed in running.followed:
                running.followed.remove(followed)

    def refused(self, local_id: int, refusal: InvalidTxnStatus) -> asyncio.Future[TxnId]:
        """Delay a refusal until the decision is durable; raise it now if no such decision is
        pending. A client relies on the answer that a transaction is ending, but a crash could undo
        a decision that is not durable.
        """
        if not self.is_undecided(local_id):
            try:
                raise refusal
            finally:
                del refusal  # its traceback refers to this frame: avoid a cycle
        refused: Prompt[TxnId] = prompt()
        self._running[local_id].refused.append((refused, refusal))
        return refused
