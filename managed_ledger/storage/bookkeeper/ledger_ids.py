"""Ledger numbers, taken from ZooKeeper in advance because the seam needs one without waiting."""

import asyncio
from collections import deque
from typing import Final

from managed_ledger.storage.bookkeeper.errors import BookKeeperError, NoLedgerNumber
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.zookeeper.refresh import Refresh

KEPT: Final = 200
_AT_LEAST: Final = 100
_FIRST: Final = 10
_PASSED_AT_ONCE: Final = 100


class LedgerIds:
    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._ids: deque[int] = deque()
        self._above = -1  # only numbers above this are used
        self._refill = Refresh(self._fill)

    async def open(self) -> None:
        """Reserves the first numbers. Raises ZooKeeperError if ZooKeeper does not answer."""
        while len(self._ids) < _FIRST:
            self._keep(await self._store.new_id())
        self._refill.request()

    async def close(self) -> None:
        """Unused numbers are lost; there are 2^31."""
        await self._refill.close()

    async def above(self, ledger_id: int) -> None:
        """As `pass_by`, for a number that the cluster has already passed. Raises BookKeeperError if
        it has not, ZooKeeperError.
        """
        self._drop_up_to(ledger_id)
        if self._ids:
            return
        self._keep(await self._store.new_id())
        if not self._ids:
            raise BookKeeperError(
                f"ledger {ledger_id} exists, and the cluster's next number is not larger: was "
                f"{self._store.root}/idgen deleted, or restored from a backup?"
            )

    def take(self) -> int:
        """Raises NoLedgerNumber if none is reserved at the moment."""
        if len(self._ids) < _AT_LEAST:
            self._refill.request()
        if not self._ids:
            raise NoLedgerNumber(
                "no ledger number is available: ZooKeeper is slow or unreachable; try again"
            )
        return self._ids.popleft()

    async def pass_by(self, ledger_id: int) -> None:
        """Use only higher numbers from now on. Costs two requests for each number that the cluster
        has not passed yet. Raises ZooKeeperError.
        """
        self._drop_up_to(ledger_id)
        while not self._ids:
            new = (self._store.new_id() for _ in range(_PASSED_AT_ONCE))
            self._keep(*await asyncio.gather(*new))

    async def _fill(self) -> None:
        while len(self._ids) < KEPT:
            self._keep(await self._store.new_id())

    def _drop_up_to(self, ledger_id: int) -> None:
        while self._ids and self._ids[0] <= ledger_id:
            self._ids.popleft()
        self._above = max(self._above, ledger_id)

    def _keep(self, *ids: int) -> None:
        """Keep a number unless it is smaller than the last: answers may arrive out of order."""
        for each in sorted(ids):
            if each > self._above:
                self._ids.append(each)
                self._above = each
