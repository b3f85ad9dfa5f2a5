"""Deletes the ledgers of a managed ledger that `trim.py` releases.

First from the index, so that nothing comes to depend on them, then from the list, then from disk.
Ledgers whose data an earlier trim could not delete stay in the list and are deleted by the next.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from managed_ledger.cursors import Cursors
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.list_record import ListRecord
from managed_ledger.position import Position
from managed_ledger.rollover import Rollover
from managed_ledger.steady_time import SteadyTime
from managed_ledger.storage.backend import Backend
from managed_ledger.trim import Retention, releasable


class Trimmer:
    """`kept_from` and `on_trimmed` are callbacks, nearly always none; see `keep`."""

    __slots__ = (
        "_backend",
        "_cursors",
        "_index",
        "_lock",
        "_record",
        "_rollover",
        "_time",
        "kept_from",
        "on_trimmed",
    )

    def __init__(
        self,
        backend: Backend,
        time: SteadyTime,
        index: LedgerIndex,
        record: ListRecord,
        cursors: Cursors,
        rollover: Rollover,
    ) -> None:
        self._backend = backend
        self._time = time
        self._index = index
        self._record = record
        self._cursors = cursors
        self._rollover = rollover
        self._lock: asyncio.Lock | None = None  # created by the first trim
        self.kept_from: tuple[Callable[[], Position], ...] = ()
        self.on_trimmed: tuple[Callable[[int], None], ...] = ()  # get the id of each ledger

    def keep(self, kept_from: Callable[[], Position]) -> None:
        """Until `keep_no_longer`, nothing at or after the position that it returns is trimmed."""
        self.kept_from += (kept_from,)

    def keep_no_longer(self, kept_from: Callable[[], Position]) -> bool:
        """Returns whether it kept anything so far."""
        before = len(self.kept_from)
        self.kept_from = tuple(each for each in self.kept_from if each is not kept_from)
        return len(self.kept_from) < before

    async def trim(self, retention: Retention, check_open: Callable[[], None]) -> None:
        """`check_open` raises when the managed ledger has been closed meanwhile."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:  # an earlier failed trim has been rolled back by then
            check_open()
            if released := self._releasable(retention):
                await self._release(released)
        ids = self._record.deletable
        await asyncio.gather(*map(self._backend.delete_ledger, ids))
        self._record.forget_deleted(ids)

    def _releasable(self, retention: Retention) -> list[LedgerInfo]:
        slowest = self._cursors.slowest_durable()
        for kept_from in self.kept_from:
            needed = kept_from().before
            slowest = needed if slowest is None else min(slowest, needed)
        return releasable(self._rollover.aged(), slowest, retention, self._time.now_ms())

    async def _release(self, released: list[LedgerInfo]) -> None:
        ids = [info.ledger_id for info in released]
        self._index.remove(ids)
        self._cursors.skip_removed()
        try:
            await self._write_without(ids)
        except ManagedLedgerError:
            self._index.restore(released)
            raise
        for ledger_id in ids:
            for trimmed in self.on_trimmed:
                trimmed(ledger_id)

    def _write_without(self, ids: Sequence[int]) -> asyncio.Future[None]:
        record = self._record.queued
        kept = tuple(info for info in record.ledgers if info.ledger_id not in ids)
        listed = replace(record, ledgers=kept, deleting=(*record.deleting, *ids))
        return self._record.write(self._rollover.noted(listed))

    def close(self) -> None:
        self.kept_from = self.on_trimmed = ()  # breaks cycles
