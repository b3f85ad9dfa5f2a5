"""Opens a data directory for an engine that will write to it.

Nothing on the disk changes before everything has been read and verified. Then the torn end of the
last journal is cut off, and the snapshot's name and the last journal are synced: a crashed process
may have written, created or renamed them without a sync. Last, unreferenced files are removed.
"""

import logging

from managed_ledger.storage.embedded import ledger_files, snapshot
from managed_ledger.storage.embedded.journal_replay import Replay
from managed_ledger.storage.embedded.journal_scan import Torn
from managed_ledger.storage.embedded.journal_writer import (
    FOLDER,
    JournalWriter,
    create_journal,
    generations,
    journal_name,
)
from managed_ledger.storage.embedded.snapshot import Snapshot

log = logging.getLogger(__name__)


class Recovery(Replay):
    """Runs once, in a worker thread, before anything else uses the state."""

    def run(self) -> JournalWriter:
        """Raises, without changing anything, CorruptStorage for damage and NewerFormat if a later
        version wrote the directory.
        """
        self.replay()
        if self.found is not None:
            self._disk.sync_folder(snapshot.FOLDER)
        writer = self._reopen(self.journals, self.last_journal_bytes, self.torn)
        try:
            self._write_format(self.found)
            self._look_at_files()
            self._remove_leftovers()
        except BaseException:
            writer.close()
            raise
        return writer

    def _write_format(self, found: Snapshot | None) -> None:
        """Runs before anything is written that earlier versions might misread. An empty snapshot
        means the same as none: all journals are replayed.
        """
        if found is None or found.format != snapshot.FORMAT:
            snapshot.write(self._disk, found or snapshot.EMPTY)

    def _look_at_files(self) -> None:
        """Log missing entries now; only reading them will fail."""
        for ledger_id, state in self.ledgers.items():
            if not state.flushed.file_bytes:
                continue
            damage = ledger_files.damage_of(self._disk, ledger_id, state.flushed)
            if damage is not None:
                index = ledger_files.load_index(self._disk, ledger_id, state.flushed)
                first, last = index.next_entry_id, state.flushed.entries - 1
                state.note_damage(first, last)
                log.error("%s: entries %d to %d cannot be read", damage, first, last)

    def _remove_leftovers(self) -> None:
        for generation in generations(self._disk):
            if generation < self.first_generation:
                self._disk.unlink(journal_name(generation))
        for ledger_id in ledger_files.ledger_ids(self._disk):
            if ledger_id not in self.ledgers:
                self._disk.unlink(ledger_files.ledger_file_name(ledger_id))

    def _reopen(self, replayed: list[int], size: int, torn: Torn | None) -> JournalWriter:
        if not replayed:
            file = create_journal(self._disk, self.first_generation)
            return JournalWriter(self._disk, self.first_generation, file, 0)
        name = journal_name(replayed[-1])
        file = self._disk.open(name)
        if torn is not None:
            log.warning(
                "%s ends in a write that a crash cut short: %d bytes at offset %d, never "
                "acknowledged, were removed. If there was no crash, the file was truncated and "
                "data after this point is missing: restore the data directory from a backup",
                name,
                torn.lost_bytes,
                torn.offset,
            )
            size = torn.offset
            file.truncate(size)
        file.fdatasync()
        self._disk.sync_folder(FOLDER)
        return JournalWriter(self._disk, replayed[-1], file, size)
