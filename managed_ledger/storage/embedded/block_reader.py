"""Reads entries that are no longer in memory, in whole blocks, with read-ahead and a cache."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from managed_ledger.errors import CorruptStorage, DamagedEntries, LedgerNotFound
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.embedded.block_cache import BlockCache
from managed_ledger.storage.embedded.disk import Disk
from managed_ledger.storage.embedded.disk_errors import unreadable
from managed_ledger.storage.embedded.ledger_files import (
    BLOCK_BYTES,
    BlockIndex,
    corrupt,
    ledger_file_name,
    load_index,
    read_blocks,
)
from managed_ledger.storage.engine_state import LedgerState
from managed_ledger.storage.entry_columns import EntryColumns

READ_AHEAD_BYTES: Final = 8 * BLOCK_BYTES
T = TypeVar("T")


class BlockReader:
    def __init__(self, disk: Disk, executor: Executor | None) -> None:
        self._disk = disk
        self._executor = executor
        self._cache = BlockCache()

    @property
    def cached_bytes(self) -> int:
        return self._cache.size_bytes

    def cached(
        self, state: LedgerState, first: int, last: int, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        """Entries from the tail or a cached block; None if the first is in neither."""
        limits = last, max_entries, max_bytes
        if first >= state.tail.first_entry_id:
            return state.tail.run(state.ledger_id, first, *limits)
        if state.index is None or not state.index.covers(first):
            return None
        block = self._cache.get((state.ledger_id, state.index.block_of(first)))
        return None if block is None else block.run(state.ledger_id, first, *limits)

    async def read(
        self, state: LedgerState, first: int, last: int, max_entries: int, max_bytes: int
    ) -> EntryRun:
        """From `first` on: at least one entry, and not always as many as the limits allow; none
        after the ledger's end. Raises LedgerNotFound, CorruptStorage, StorageFailed.
        """
        last = min(last, state.tail.next_entry_id - 1)
        if last < first:
            return EntryRun(state.ledger_id, first, [], [])
        run = self.cached(state, first, last, max_entries, max_bytes)
        if run is not None:
            return run
        index = state.index or await self._load_index(state)
        if not index.covers(first):
            raise damaged(state, index.next_entry_id, state.flushed.entries - 1, index.damage)
        file_bytes = index.next_offset if index.damage else state.flushed.file_bytes
        start, end = index.stretch(first, last, file_bytes, self._read_ahead())
        read = partial(read_blocks, self._disk, state.ledger_id, start, end)
        try:
            blocks = _in_place(await self._run(state, read), state, index.block_of(first), start)
        except CorruptStorage as error:
            block_end = index.end_of_block(first, state.flushed.entries)
            raise damaged(state, index.block_of(first), block_end, error) from error
        for block in blocks:
            self._cache.add((state.ledger_id, block.first_entry_id), block)
        run = blocks[0].run(state.ledger_id, first, last, max_entries, max_bytes)
        assert run is not None
        return run

    async def _load_index(self, state: LedgerState) -> BlockIndex:
        """Load the index from the file; repeat if a flush ended in the meantime."""
        while state.index is None:
            flushed = state.flushed
            load = partial(load_index, self._disk, state.ledger_id, flushed)
            index = await self._run(state, load)
            if state.deleted and index.damage is not None:
                raise deleted(state)
            if state.flushed is flushed:
                state.index = index
        return state.index

    async def _run(self, state: LedgerState, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        name = ledger_file_name(state.ledger_id)
        try:
            return await loop.run_in_executor(self._executor, work)
        except OSError as error:
            if state.deleted:
                raise deleted(state) from error
            if isinstance(error, FileNotFoundError):
                raise CorruptStorage(f"{name} is missing") from error
            raise unreadable(error, name) from error

    def _read_ahead(self) -> int:
        """In bytes. Many readers read less far ahead, or they would evict each other's blocks."""
        share = self._cache.max_bytes // (2 * (self._cache.ledgers() + 1))
        return min(READ_AHEAD_BYTES, share)

    def close(self) -> None:
        self._cache.close()


def _in_place(
    blocks: list[EntryColumns], state: LedgerState, first_entry_id: int, offset: int
) -> list[EntryColumns]:
    """The blocks up to the first that belongs elsewhere in the file: a disk may write one to a
    wrong place, where its checksum is as good. Raises CorruptStorage if that is the first.
    """
    for number, block in enumerate(blocks):
        if block.first_entry_id != first_entry_id:
            if number == 0:
                raise corrupt(ledger_file_name(state.ledger_id), offset)
            return blocks[:number]
        first_entry_id += len(block.entries)
    return blocks


def deleted(state: LedgerState) -> LedgerNotFound:
    return LedgerNotFound(f"ledger {state.ledger_id} was deleted")


def damaged(
    state: LedgerState, first: int, last: int, why: CorruptStorage | None
) -> DamagedEntries:
    state.note_damage(first, last)
    return DamagedEntries(state.ledger_id, first, last, str(why))
