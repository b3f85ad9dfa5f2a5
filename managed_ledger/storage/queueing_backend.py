"""The common part of the embedded and memory backends: queued operations, group commit, and state
in memory.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from managed_ledger.errors import LedgerClosed, LedgerNotFound
from managed_ledger.storage.backend import Appended, LedgerSummary, MetadataStore, Span
from managed_ledger.storage.commit_stats import CommitStats
from managed_ledger.storage.engine_state import EngineState, LedgerState
from managed_ledger.storage.fullness import EntryLimit, Fullness
from managed_ledger.storage.group_commit import Group, GroupCommit
from managed_ledger.storage.importing import LAST_ID_KEY, LedgerExists
from managed_ledger.storage.metadata_table import MetadataTable
from managed_ledger.storage.operations import (
    DeleteLedger,
    Operation,
    Put,
    Remove,
    Sync,
    append_operation,
)


class QueueingBackend(ABC):
    """A subclass makes groups durable and adds reading."""

    is_ordered = True
    keeps_appends_whole = True
    is_shared = False
    short_of_copies = 0

    def __init__(self) -> None:
        self.fullness = Fullness()
        self.entry_limit = EntryLimit()
        self._state = EngineState(MetadataTable(self._submit_mutation))
        self._commits = self._new_commits()

    def _new_commits(self) -> GroupCommit:
        return GroupCommit(
            self._write,
            self._state.apply,
            self._state.withdraw,
            self._room_is_low,
            self._must_wait,
        )

    @property
    def metadata(self) -> MetadataStore:
        return self._state.table

    @property
    def pending_bytes(self) -> int:
        return self._commits.pending_bytes

    @property
    def commit_stats(self) -> CommitStats:
        return self._commits.stats

    @property
    def cached_bytes(self) -> int | None:
        return None

    def refusal(self) -> str | None:
        """Why a message would be refused now; None if it would probably be accepted."""
        return None

    def new_ledger_id(self) -> int:
        ledger_id = self._state.next_ledger_id
        self._state.next_ledger_id += 1
        return ledger_id

    def read_back(self, key: str, value: bytes) -> bytes:
        return value

    async def begin_import(self, ledger_id: int, key: str) -> None:
        if ledger_id in self._state.ledgers:
            raise LedgerExists(f"ledger {ledger_id} already exists in the target")
        await self.metadata.put(key, b"", -1, new_ledger_id=ledger_id)

    async def resume_import(self, ledger_id: int, entries: int) -> int:
        return self._ledger(ledger_id).queued_entries

    async def pass_ledger_id(self, ledger_id: int) -> None:
        """Mark the number as used, durably, by creating and deleting a ledger with that number."""
        if self._state.next_ledger_id <= ledger_id:
            await self.metadata.put(LAST_ID_KEY, b"%d" % ledger_id, new_ledger_id=ledger_id)
        if (made := self.metadata.get(LAST_ID_KEY)) is not None:
            await self.delete_ledger(int(made.value))
            await self.metadata.delete(LAST_ID_KEY)

    async def number_above(self, ledger_id: int) -> None:  # noqa: B027 - nothing to do
        """Nothing to do: no other process assigns numbers."""

    def delete_ledger(self, ledger_id: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits.submit(DeleteLedger(ledger_id, done))
        return done

    def damaged(self, ledger_id: int) -> tuple[Span, ...]:
        state = self._state.ledgers.get(ledger_id)
        return () if state is None else state.damaged

    def ledger_ids(self) -> list[int]:
        return sorted(self._state.ledgers)

    def append(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        appended: Appended,
        tag: bytes = b"",
    ) -> bool:
        state = self._state.ledgers.get(ledger_id)
        if state is None or state.fenced:
            refusal = not_found(ledger_id) if state is None else fenced(ledger_id)
            asyncio.get_running_loop().call_soon(appended, refusal)
            return False
        assert first_entry_id == state.queued_entries, "entries are numbered without gaps"
        state.queued_entries += len(entries)
        self._commits.submit(
            append_operation(ledger_id, first_entry_id, entries, message_counts, appended, tag)
        )
        return True  # `GroupCommit` writes in order, and fails what follows a failure

    async def close_ledger(self, ledger_id: int) -> None:
        """Nothing to do: no other process reads the ledger."""
        assert not self.is_shared

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        state = self._ledger(ledger_id)
        state.fenced = True
        if state.queued_entries != state.tail.next_entry_id:
            await self._settled()
        return state.summary()

    @abstractmethod
    def _write(self, group: Group) -> asyncio.Future[None]:
        """Make the group durable, or fail."""

    def _room_is_low(self) -> bool:
        return False

    def _must_wait(self, operation: Operation) -> bool:
        """Whether there is no room for the operation."""
        return False

    def _submit_mutation(self, operation: Put | Remove) -> None:
        self._commits.submit(operation)

    def _ledger(self, ledger_id: int) -> LedgerState:
        state = self._state.ledgers.get(ledger_id)
        if state is None:
            raise not_found(ledger_id)
        return state

    async def _settled(self) -> None:
        """Return when every operation submitted so far is durable or has failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commits.submit(Sync(done))
        await done


def not_found(ledger_id: int) -> LedgerNotFound:
    return LedgerNotFound(f"ledger {ledger_id} was deleted or never existed")


def fenced(ledger_id: int) -> LedgerClosed:
    return LedgerClosed(
        f"ledger {ledger_id} was recovered by another writer; open the managed ledger again"
    )
