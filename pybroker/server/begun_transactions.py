"""The transactions that a connection began."""

import asyncio
from typing import Final

from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.coordinators import Coordinators

_LOOK_AGAIN_S: Final = 1.0


class BegunTransactions:
    """Those that a connection asked for, and did not end itself. Others may have ended since."""

    __slots__ = ("_beginning", "_ids", "_next_look_s", "_since_look")

    def __init__(self) -> None:
        self._ids: set[TxnId] = set()
        self._beginning = 0  # accepted, and not durable yet
        self._since_look = 0  # how many began
        self._next_look_s = 0.0

    def __len__(self) -> int:
        return self._beginning + len(self._ids)

    def begins(self, beginning: asyncio.Future[TxnId]) -> None:
        """It counts from now on, until it has failed or ended."""
        self._beginning += 1
        beginning.add_done_callback(self._began)

    def _began(self, beginning: asyncio.Future[TxnId]) -> None:
        self._beginning -= 1
        if not beginning.cancelled() and beginning.exception() is None:
            self._ids.add(beginning.result())
            self._since_look += 1

    def ended(self, txn_id: TxnId) -> None:
        self._ids.discard(txn_id)

    def are(self, most: int, coordinators: Coordinators) -> bool:
        """Whether so many are open.

        Which of them have ended is looked up when many have begun since it was last, or once a
        second: those who ask again and again cost no more than those who begin.
        """
        if len(self) < most:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_look_s or self._since_look >= most / 2:
            self._next_look_s, self._since_look = now_s + _LOOK_AGAIN_S, 0
            self._ids = {txn_id for txn_id in self._ids if coordinators.begun(txn_id) is not None}
        return len(self) >= most
