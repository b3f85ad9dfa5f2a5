"""The embedded engine: one journal for all writes, and a file for each ledger.

Group commit writes appends and metadata changes as frames of one journal; they become visible once
they are durable. Recent entries stay in memory; when a journal file is full, Checkpoints moves its
entries into the ledgers' own files. Blocking work runs in two executors: commits, one at a time, in
the first; reads and flushes in the second, so that they never delay a commit.

With durability="relaxed" commits are not synced; a timer syncs the journal once a second. A power
failure may then lose about the last second of acknowledged writes, always the newest ones.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, Literal, TypeVar

from managed_ledger.config import Clock
from managed_ledger.errors import LedgerClosed, ManagedLedgerError, StorageFull
from managed_ledger.prompt import when_done
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.embedded.block_reader import BlockReader
from managed_ledger.storage.embedded.checkpoints import Checkpoints
from managed_ledger.storage.embedded.disk import Disk
from managed_ledger.storage.embedded.disk_errors import translated
from managed_ledger.storage.embedded.journal_recovery import Recovery
from managed_ledger.storage.embedded.journal_writer import JournalWriter
from managed_ledger.storage.embedded.room import EARLY_JOURNAL_BYTES, Room
from managed_ledger.storage.group_commit import Group, no_room
from managed_ledger.storage.one_thread import OneThread
from managed_ledger.storage.operations import Operation, Sync
from managed_ledger.storage.queueing_backend import QueueingBackend

log = logging.getLogger(__name__)
Durability = Literal["fsync", "relaxed"]
T = TypeVar("T")
RELAXED_SYNC_S: Final = 1.0
SLOW_COMMIT_S: Final = 5.0
LOOK_FOR_ROOM_S: Final = 1.0


def log_fatal(error: Exception) -> None:
    log.critical("storage stops: %s", error)


class EmbeddedBackend(QueueingBackend):
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        durability: Durability = "fsync",
        on_fatal: Callable[[Exception], None] = log_fatal,
        *,
        executor: Executor | None = None,
        journal_max_bytes: int = 64 * 1024 * 1024,
        max_old_journals: int = 2,
    ) -> None:
        """`on_fatal` is called once, when the disk has failed: all later operations fail, and the
        process should end. `executor` serves both kinds of work; None creates two executors with
        threads.
        """
        super().__init__()
        self._disk = disk
        self._clock = clock
        self._syncs_commits = durability == "fsync"
        self._on_fatal = on_fatal
        self._journal_max_bytes = journal_max_bytes
        self._max_old_journals = max_old_journals
        self._commit_executor = executor or OneThread("journal")
        self._file_executor = executor or ThreadPoolExecutor(8, "ledger-files")
        self._own_executors = executor is None
        self._reader = BlockReader(disk, self._file_executor)
        self._writer: JournalWriter
        self._checkpoints: Checkpoints
        self._room = Room(disk)
        self._making_room: asyncio.Future[None] | None = None
        self._is_open = False
        self._failed = False
        self._sync_timer: asyncio.TimerHandle | None = None
        self._room_timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        recovery = Recovery(self._disk)
        self._writer = await self._in_thread(lambda: self._lock_and_recover(recovery))
        self._writer.room = self._room
        self._writer.time(self._clock, self.commit_stats.fsync_seconds)
        self._state.ledgers = recovery.ledgers
        self._state.next_ledger_id = recovery.next_ledger_id
        self._state.table.load(recovery.items.items())
        self._checkpoints = Checkpoints(
            self._disk,
            self._file_executor,
            self._state,
            self._writer,
            recovery.first_generation,
            self._max_old_journals,
            self._sync_journal,
            self._checkpoint_failed,
        )
        self._checkpoints.start()
        self._is_open = True

    async def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._commits.stop_taking(LedgerClosed("the storage was closed; start it again"))
        self._reader.close()
        for timer in (self._sync_timer, self._room_timer):
            if timer is not None:
                timer.cancel()
        await self._commits.drain()
        await self._checkpoints.stop()
        if not self._failed:
            await self._empty_journal()
        await self._in_thread(self._close_files)
        if self._own_executors:
            self._commit_executor.shutdown(wait=False)
            self._file_executor.shutdown(wait=False)

    @property
    def cached_bytes(self) -> int | None:
        return self._reader.cached_bytes

    def delete_ledger(self, ledger_id: int) -> asyncio.Future[None]:
        done = super().delete_ledger(ledger_id)
        done.add_done_callback(lambda _: self._checkpoints.ledger_went())
        return done

    def read_cached(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun | None:
        state = self._state.ledgers.get(ledger_id)
        if state is None:
            return None
        return self._reader.cached(state, first_entry_id, last_entry_id, max_entries, max_bytes)

    async def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun:
        state = self._ledger(ledger_id)
        return await self._reader.read(state, first_entry_id, last_entry_id, max_entries, max_bytes)

    def _lock_and_recover(self, recovery: Recovery) -> JournalWriter:
        self._disk.lock()
        try:
            writer = recovery.run()
            self._room.begin()
            return writer
        except OSError as error:
            self._disk.unlock()
            raise translated(error, "the data directory") from error
        except ManagedLedgerError:
            self._disk.unlock()
            raise

    def _close_files(self) -> None:
        self._writer.close()
        self._disk.unlock()

    async def _empty_journal(self) -> None:
        """Move all entries to the ledgers' files, so that the next start has nothing to replay."""
        try:
            if self._writer.size:
                await self._in_thread(self._writer.rotate)
            await self._checkpoints.run_once()
        except (OSError, ManagedLedgerError) as error:
            log.warning("the next start will replay the journal: %s", error)

    def _room_is_low(self) -> bool:
        old_bytes = self._checkpoints.old_journals * self._journal_max_bytes
        self._room.look(old_bytes + self._writer.size + self._commits.pending_bytes)
        self.fullness.free_bytes = self._room.free_bytes
        if not self._room.is_low and self.fullness.is_full:
            self.fullness.has_room(self._clock.monotonic_s())
        return self._room.is_low

    def refusal(self) -> str | None:
        return self.fullness.why(self._clock.monotonic_s())

    def _must_wait(self, operation: Operation) -> bool:
        """Whether the operation must wait until the journal has made room."""
        if not self._room.must_wait(operation):
            return False
        self.fullness.refuse(str(no_room()), self._clock.monotonic_s())
        self._make_room()
        self._see_to_the_reserve()  # there may be no other write that checks for room
        return True

    def _make_room(self) -> None:
        """Rotate the journal if necessary, without waiting for another write."""
        if self._journal_should_go and not self._making_room:
            self._making_room = asyncio.get_running_loop().create_future()
            self._making_room.add_done_callback(self._room_was_made)
            asyncio.get_running_loop().call_soon(self._commits.submit, Sync(self._making_room))

    def _room_was_made(self, done: asyncio.Future[None]) -> None:
        done.exception()  # `_committed` handles it
        self._making_room = None

    @property
    def _journal_should_go(self) -> bool:
        """Whether the journal should be rotated. When room is low, it is rotated early, because its
        contents are on disk twice. The same applies if only a refused message lacked room: the next
        one is likely to be as large.
        """
        if not self._room.is_low and self._making_room is None:
            return self._writer.size >= self._journal_max_bytes
        limit = min(EARLY_JOURNAL_BYTES, self._journal_max_bytes)
        return self._writer.size >= limit and not self._checkpoints.behind

    def _write(self, group: Group) -> asyncio.Future[None]:
        rotate = self._journal_should_go
        if rotate and self._checkpoints.behind:
            return asyncio.get_running_loop().create_task(self._write_when_caught_up(group))
        return self._commit(group, rotate)

    async def _write_when_caught_up(self, group: Group) -> None:
        await self._checkpoints.caught_up()
        await self._commit(group, rotate=True)

    def _commit(self, group: Group, rotate: bool) -> asyncio.Future[None]:
        sync = self._syncs_commits or any(isinstance(op, Sync) for op in group.operations)
        if not sync and self._sync_timer is None:
            loop = asyncio.get_running_loop()
            self._sync_timer = loop.call_later(RELAXED_SYNC_S, self._sync_relaxed)
        started_s = self._clock.monotonic_s()
        done: asyncio.Future[None] = asyncio.get_running_loop().run_in_executor(
            self._commit_executor, self._writer.write, group, sync, rotate
        )
        when_done(done, lambda done: self._committed(done, rotate, started_s))
        return done

    def _committed(self, done: asyncio.Future[None], rotated: bool, started_s: float) -> None:
        took_s = self._clock.monotonic_s() - started_s
        if took_s > SLOW_COMMIT_S:
            log.warning("the disk is slow: a commit took %.1f s", took_s)
        error = done.exception()
        if isinstance(error, Exception) and not isinstance(error, StorageFull):
            self._fail(error)
        else:
            if isinstance(error, StorageFull):
                self.fullness.refuse(str(error), self._clock.monotonic_s())
            if rotated:  # even if the write after the rotation did not fit
                self._checkpoints.wake()
        self._see_to_the_reserve()

    def _see_to_the_reserve(self) -> None:
        """Check for room by timer while it is short. Without writes nothing else would notice that
        other processes free or fill the disk, or remove a journal in which only deleted entries
        remain.
        """
        is_short = self._room.lacks_reserve or self._room.is_low or self.fullness.is_full
        if is_short and self._room_timer is None and self._is_open:
            loop = asyncio.get_running_loop()
            self._room_timer = loop.call_later(LOOK_FOR_ROOM_S, self._look_for_room)

    def _look_for_room(self) -> None:
        self._room_timer = None
        if self._room_is_low():
            self._make_room()
        elif self._room.lacks_reserve:
            self._checkpoints.wake()  # a checkpoint run restores the reserve
        self._see_to_the_reserve()

    async def _sync_journal(self) -> None:
        """Sync everything that has taken effect. This bypasses group commit, because commits may be
        waiting for a checkpoint.
        """
        if not self._syncs_commits:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._commit_executor, self._writer.sync)

    def _sync_relaxed(self) -> None:
        self._sync_timer = None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda done: done.exception())  # `_committed` handles it
        self._commits.submit(Sync(done))

    def _checkpoint_failed(self, error: ManagedLedgerError) -> None:
        self._commits.refuse(error)
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._checkpoints.give_up()
            self._on_fatal(error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._file_executor, work)
