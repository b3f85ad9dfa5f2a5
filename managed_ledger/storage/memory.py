"""A backend that keeps everything in this process: for tests and throwaway brokers.

It queues and completes exactly as the embedded engine does, so what works over it does not come to
depend on immediate effects. Closing it keeps the contents: opening it again is a restart.
"""

import asyncio
from collections.abc import Sequence

from managed_ledger.errors import LedgerClosed, LedgerNotFound
from managed_ledger.storage.backend import Appended, EntryRun, LedgerSummary, MetadataStore
from managed_ledger.storage.group_commit import Group, GroupCommit, size_of
from managed_ledger.storage.metadata_table import MetadataTable
from managed_ledger.storage.operations import (
    Append,
    CreateLedger,
    DeleteLedger,
    Operation,
    append_operation,
)
from managed_ledger.storage.tail import Tail


class MemoryBackend:
    def __init__(self) -> None:
        self._commits = GroupCommit(self._write, self._apply, self._withdraw)
        self._table = MetadataTable(self._commits.submit)
        self._ledgers: dict[int, Tail] = {}
        self._next_ledger_id = 0
        self._fenced: dict[int, None] = {}

    @property
    def metadata(self) -> MetadataStore:
        return self._table

    @property
    def pending_bytes(self) -> int:
        return self._commits.pending_bytes

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        await self._commits.drain()

    async def create_ledger(self) -> int:
        ledger_id = self._next_ledger_id
        self._next_ledger_id += 1
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._commits.submit(CreateLedger(ledger_id, done), 0)
        return await done

    def append(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        appended: Appended,
    ) -> None:
        if refusal := self._refusal(ledger_id):
            asyncio.get_running_loop().call_soon(appended, refusal)
            return
        append = append_operation(ledger_id, first_entry_id, entries, message_counts, appended)
        self._commits.submit(append, size_of(append))

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        self._fenced[ledger_id] = None
        await self._commits.drain()
        tail = self._ledger(ledger_id)
        size_bytes = sum(map(len, tail.entries))
        return LedgerSummary(tail.next_entry_id - 1, size_bytes, sum(tail.message_counts))

    def read_cached(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun | None:
        tail = self._ledgers.get(ledger_id)
        if tail is None:
            return None
        return tail.run(ledger_id, first_entry_id, last_entry_id, max_entries, max_bytes)

    async def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun:
        tail = self._ledger(ledger_id)
        run = tail.run(ledger_id, first_entry_id, last_entry_id, max_entries, max_bytes)
        return run or EntryRun(ledger_id, first_entry_id, [], [])

    async def delete_ledger(self, ledger_id: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits.submit(DeleteLedger(ledger_id, done), 0)
        await done

    def _ledger(self, ledger_id: int) -> Tail:
        tail = self._ledgers.get(ledger_id)
        if tail is None:
            raise not_found(ledger_id)
        return tail

    def _refusal(self, ledger_id: int) -> Exception | None:
        if ledger_id in self._fenced:
            return fenced(ledger_id)
        if ledger_id not in self._ledgers:
            return not_found(ledger_id)
        return None

    def _write(self, group: Group) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def _apply(self, operation: Operation) -> None:
        if isinstance(operation, Append):
            tail = self._ledgers.get(operation.ledger_id)
            if tail is not None:  # else it was deleted behind the append
                assert operation.first_entry_id == tail.next_entry_id
                tail.extend(operation.entries, operation.message_counts)
        elif isinstance(operation, CreateLedger):
            self._ledgers[operation.ledger_id] = Tail()
        elif isinstance(operation, DeleteLedger):
            self._ledgers.pop(operation.ledger_id, None)
            self._fenced.pop(operation.ledger_id, None)
        else:
            self._table.apply(operation)

    def _withdraw(self, operation: Operation) -> None:
        raise AssertionError("memory cannot refuse a write")


def not_found(ledger_id: int) -> LedgerNotFound:
    return LedgerNotFound(f"ledger {ledger_id} was deleted or never existed")


def fenced(ledger_id: int) -> LedgerClosed:
    return LedgerClosed(
        f"ledger {ledger_id} was recovered by another writer; open the managed ledger again"
    )
