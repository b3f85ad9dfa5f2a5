"""The background work: flush entries to their ledgers' files, write snapshots, remove old journals.

Once the journal has moved on to a new file, the contents of the older files are written elsewhere:
each ledger's entries into its own file, synced; then the snapshot, synced and renamed into place.
Only then are the old journals removed. The snapshot contains the state at that moment, including
that of the newest journal, which is synced first: a journal that a power failure left older than
the snapshot could not be replayed on top of it. If checkpoints fall behind, commits that need a new
journal wait for them, which limits both memory and recovery time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from managed_ledger.errors import ManagedLedgerError, StorageFull
from managed_ledger.storage.embedded import ledger_files, snapshot
from managed_ledger.storage.embedded.disk import Disk
from managed_ledger.storage.embedded.disk_errors import is_full, translated
from managed_ledger.storage.embedded.journal_writer import JournalWriter, journal_name
from managed_ledger.storage.embedded.ledger_files import (
    FlushJob,
    FlushResult,
    ledger_file_name,
    sync_all,
    write_all,
)
from managed_ledger.storage.embedded.room import RESERVE_BYTES
from managed_ledger.storage.engine_state import EngineState, LedgerState

log = logging.getLogger(__name__)
FLUSH_BYTES: Final = 4 * 1024 * 1024  # at a time, so that the journal can use the disk in between
FLUSH_FILES: Final = 256
SYNCS_AT_ONCE: Final = 8
RETRY_S: Final = 1.0
T = TypeVar("T")


class Checkpoints:
    def __init__(
        self,
        disk: Disk,
        executor: Executor | None,
        state: EngineState,
        writer: JournalWriter,
        oldest_generation: int,
        max_old_journals: int,
        sync_journal: Callable[[], Awaitable[None]],
        on_failure: Callable[[ManagedLedgerError], None],
    ) -> None:
        self._disk = disk
        self._executor = executor
        self._state = state
        self._writer = writer
        self._oldest_generation = oldest_generation
        self._max_old_journals = max_old_journals
        self._sync_journal = sync_journal
        self._on_failure = on_failure
        self._due = asyncio.Event()
        self._progress = asyncio.Event()
        self._stopping = self._gave_up = False
        self._names_to_sync = False  # new names of ledger files, perhaps from an earlier attempt
        self._ledger_went_in = -1  # the newest journal that may hold entries of a deleted one
        self._stalled: ManagedLedgerError | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def behind(self) -> bool:
        """Whether the journal must wait before it begins another file."""
        return self.old_journals >= self._max_old_journals

    @property
    def old_journals(self) -> int:
        return self._writer.generation - self._oldest_generation

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.wake()

    def wake(self) -> None:
        """Call when there may be work."""
        self._due.set()

    def ledger_went(self) -> None:
        """A ledger was deleted: its file, and journals with its other entries, can be removed."""
        self._ledger_went_in = self._writer.generation
        self.wake()

    async def caught_up(self) -> None:
        """Wait until the journal may begin another file. Raises StorageFull, StorageFailed."""
        while self.behind:
            if self._stalled is not None:
                raise self._stalled
            self._progress.clear()
            await self._progress.wait()

    async def stop(self) -> None:
        """Finish work in progress."""
        self._stopping = True
        self.wake()
        if self._task is not None:
            await self._task

    def give_up(self) -> None:
        """The disk has failed: begin nothing more."""
        self._gave_up = self._stopping = True

    async def run_once(self) -> None:
        """Do the work that is due. Raises OSError."""
        await self._unlink_doomed()  # first: the checkpoint may need their room
        if self.old_journals:
            await self._checkpoint_even_if_full()
        await self._in_thread(self._writer.room.keep_reserve)

    async def _run(self) -> None:
        while not self._stopping:
            await self._due.wait()
            self._due.clear()
            if self._gave_up:
                return
            try:
                await self.run_once()
                self._stalled = None
            except Exception as error:  # even after a bug, commits must not wait forever
                self._note(translated(error, "the ledger files"))
            self._progress.set()

    def _note(self, error: ManagedLedgerError) -> None:
        """A full disk is temporary; any other failure is final."""
        self._stalled = error
        if isinstance(error, StorageFull):
            log.error("%s", error)
            asyncio.get_running_loop().call_later(RETRY_S, self.wake)
        else:
            self._stopping = True
            self._on_failure(error)

    async def _checkpoint_even_if_full(self) -> None:
        """Checkpoint; on a full disk, give up the reserve for it if that suffices and frees space.
        Space is freed if the old journals hold entries of deleted ledgers: only the other entries
        are written again before the journals are removed.
        """
        try:
            await self._checkpoint()
        except OSError as error:
            pays = self._ledger_went_in >= self._oldest_generation
            fits = sum(s.unflushed_bytes for s in self._state.ledgers.values()) < RESERVE_BYTES / 2
            if not (is_full(error) and pays and fits):
                raise
            if not await self._in_thread(self._writer.room.give_up_reserve):
                raise
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        generation = self._writer.generation
        await self._flush_ledgers()
        captured = self._state.snapshot(generation)
        await self._sync_journal()
        await self._in_thread(partial(snapshot.write, self._disk, captured))
        old = map(journal_name, range(self._oldest_generation, generation))
        await self._in_thread(partial(unlink_all, self._disk, old))
        self._oldest_generation = generation
        for state in self._state.ledgers.values():
            state.evict()

    async def _flush_ledgers(self) -> None:
        """Flush all entries that are durable now, in batches."""
        targets = {
            state: state.tail.next_entry_id
            for state in self._state.ledgers.values()
            if state.unflushed_entries
        }
        self._names_to_sync = self._names_to_sync or bool(targets)
        while targets:
            batch = self._batch(targets)
            jobs = [job for _, job in batch]
            results = await self._write_and_sync(jobs)
            for (state, _), result in zip(batch, results, strict=True):
                state.note_flushed(result)
                if state.deleted or state.flushed.entries >= targets[state]:
                    del targets[state]
        if self._names_to_sync:
            await self._in_thread(partial(self._disk.sync_folder, ledger_files.FOLDER))
            self._names_to_sync = False

    async def _write_and_sync(self, jobs: list[FlushJob]) -> list[FlushResult]:
        """Syncs run in parallel, because the file system merges them into one commit of its own."""
        results = await self._in_thread(partial(write_all, self._disk, jobs))
        shares = [jobs[n::SYNCS_AT_ONCE] for n in range(SYNCS_AT_ONCE)]
        syncs = [partial(sync_all, self._disk, share) for share in shares if share]
        await asyncio.gather(*map(self._in_thread, syncs))
        return results

    def _batch(self, targets: Iterable[LedgerState]) -> list[tuple[LedgerState, FlushJob]]:
        batch: list[tuple[LedgerState, FlushJob]] = []
        room = FLUSH_BYTES
        for state in islice(targets, FLUSH_FILES):
            job = state.flush_job(room)
            batch.append((state, job))
            room -= sum(map(len, job.entries))
            if room <= 0:
                break
        return batch

    async def _unlink_doomed(self) -> None:
        doomed, self._state.doomed = self._state.doomed, []
        if doomed:
            await self._sync_journal()  # the journal records their deletion
            names = map(ledger_file_name, doomed)
            await self._in_thread(partial(unlink_all, self._disk, names))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def unlink_all(disk: Disk, names: Iterable[str]) -> None:
    for name in names:
        disk.unlink(name)
