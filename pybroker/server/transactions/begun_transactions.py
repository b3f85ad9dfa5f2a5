"""The transactions that a connection began."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from managed_ledger.prompt import when_done
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.coordinators import Coordinators

_LOOK_FROM: Final = 1000  # from this many on, check which have ended
_LOOK_AGAIN_S: Final = 1.0

Left = Mapping[TxnId, bool]  # the value: whether the client requested an abort on disconnect


class BegunTransactions:
    """Transactions that a connection began and did not end. Others may have ended them."""

    __slots__ = (
        "_asked",
        "_beginning",
        "_coordinators",
        "_leave_to",
        "_look_at",
        "_next_look_s",
        "_since_look",
        "are_expected",
    )

    def __init__(self, coordinators: Coordinators) -> None:
        self.are_expected = False  # the client has connected to a coordinator
        self._coordinators = coordinators
        self._asked: dict[TxnId, bool] = {}
        self._beginning = 0  # accepted, not yet durable
        self._leave_to: Callable[[Left], None] | None = None  # once the connection is closed
        self._look_at = _LOOK_FROM
        self._since_look = 0  # how many began since the last check
        self._next_look_s = 0.0

    def __len__(self) -> int:
        return self._beginning + len(self._asked)

    def begins(self, beginning: asyncio.Future[TxnId], asked: bool) -> None:
        """Counts the transaction from now on, until it fails or ends."""
        self._beginning += 1
        when_done(beginning, partial(self._began, asked))

    def _began(self, asked: bool, beginning: asyncio.Future[TxnId]) -> None:
        self._beginning -= 1
        if beginning.cancelled() or beginning.exception() is not None:
            return
        if self._leave_to is not None:
            self._leave_to({beginning.result(): asked})
            return
        self._asked[beginning.result()] = asked
        self._since_look += 1
        if len(self._asked) >= self._look_at:
            self._look()
            self._look_at = max(_LOOK_FROM, 2 * len(self._asked))

    def ended(self, txn_id: TxnId) -> None:
        self._asked.pop(txn_id, None)

    def leave(self, to: Callable[[Left], None]) -> None:
        """The connection is closed: `to` receives its transactions, even those that begin later."""
        self._leave_to = to
        if self._asked:
            left, self._asked = self._asked, {}
            to(left)

    def are(self, most: int) -> bool:
        """Whether at least `most` are open.

        Checks which have ended only once a second, or when many have begun since the last check, so
        that repeated requests cost no more than successful ones.
        """
        if self._beginning + len(self._asked) < most:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_look_s or self._since_look >= most / 2:
            self._next_look_s, self._since_look = now_s + _LOOK_AGAIN_S, 0
            self._look()
        return len(self) >= most

    def _look(self) -> None:
        begun = self._coordinators.begun
        self._asked = {each: asked for each, asked in self._asked.items() if begun(each)}
