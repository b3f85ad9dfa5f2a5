"""Reads a data directory while no broker uses it; nothing in it changes.

The directory is loaded as at a start, but nothing is repaired: leftovers of a crash stay.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from managed_ledger.storage.backend import EntryRun, LedgerSummary
from managed_ledger.storage.embedded.block_reader import BlockReader
from managed_ledger.storage.embedded.journal_replay import Replay
from managed_ledger.storage.embedded.overlay_disk import OverlayDisk
from managed_ledger.storage.engine_state import LedgerState
from managed_ledger.storage.queueing_backend import not_found

_READERS: Final = 4


class ReadOnlyDirectory:
    def __init__(self, path: Path) -> None:
        self._disk = OverlayDisk(path)
        self._replay = Replay(self._disk)
        self._executor = ThreadPoolExecutor(_READERS, "directory")
        self._reader = BlockReader(self._disk, self._executor)

    async def open(self) -> None:
        """Lock the directory against brokers, and read the snapshot and the journals. Raises
        DirectoryInUse, CorruptStorage, NewerFormat, OSError.
        """
        self._disk.hold()
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._replay.replay)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Idempotent."""
        self._reader.close()
        self._executor.shutdown(wait=True)
        self._disk.release()

    def items(self) -> Mapping[str, bytes]:
        """All keys, with their values."""
        return {key: stored.value for key, stored in self._replay.items.items()}

    def new_ledger_id(self) -> int:
        """A number higher than any ledger id ever used here."""
        return self._replay.next_ledger_id

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        """The ledger's summary; there is no writer to fence. Raises LedgerNotFound."""
        return self._ledger(ledger_id).summary()

    async def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun:
        """As `LogStorage.read`. Raises LedgerNotFound, DamagedEntries."""
        state = self._ledger(ledger_id)
        return await self._reader.read(state, first_entry_id, last_entry_id, max_entries, max_bytes)

    def _ledger(self, ledger_id: int) -> LedgerState:
        state = self._replay.ledgers.get(ledger_id)
        if state is None:
            raise not_found(ledger_id)
        return state
