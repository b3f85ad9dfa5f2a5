"""The topics and subscriptions that a connection added to transactions, explicitly or by use."""

import asyncio
from typing import Final

from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.coordinators import Coordinators

_LOOK_FROM: Final = 1000  # from this many transactions on, check which have ended
_LOOK_AGAIN_S: Final = 1.0


class AddedParticipants:
    """Counts the topics and subscriptions that a connection added, by transaction, until the
    transaction ends. It does not matter which connection began the transaction. A participant that
    was added twice counts twice until the next check.
    """

    __slots__ = ("_added", "_coordinators", "_look_at", "_next_look_s", "total")

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._added: dict[TxnId, int] = {}
        self.total = 0  # or more: it may include transactions that others have ended
        self._look_at = _LOOK_FROM
        self._next_look_s = 0.0

    def add(self, txn_id: TxnId, count: int) -> None:
        if count:
            self._added[txn_id] = self._added.get(txn_id, 0) + count
            self.total += count
        if len(self._added) >= self._look_at:  # `ended` misses ends by others
            self._look()
            self._look_at = max(_LOOK_FROM, 2 * len(self._added))

    def ended(self, txn_id: TxnId) -> None:
        self.total -= self._added.pop(txn_id, 0)

    def would_be_more_than(self, most: int, count: int) -> bool:
        """Whether `count` more would exceed `most`. Checks at most once a second which transactions
        have ended, so that repeated requests cost no more than successful ones.
        """
        if self.total + count <= most:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_AGAIN_S
            self._look()
        return self.total + count > most

    def _look(self) -> None:
        left = dict[TxnId, int]()
        for txn_id, count in self._added.items():
            if there := self._coordinators.participants_in(txn_id):
                left[txn_id] = min(count, there)
        self._added, self.total = left, sum(left.values())
