"""What a data directory holds: the snapshot, and on top of it the journals since.

Nothing on the disk is changed before all of it has been read and found good. Then what was read is
made to last, for a crashed process may have written it, or created or renamed its file, without
having come to the sync; only then the torn end of the last journal is cut off and files that
nothing refers to are removed.
"""

import logging

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.embedded import ledger_files, snapshot
from managed_ledger.storage.embedded.disk import Disk, DiskFile
from managed_ledger.storage.embedded.journal_format import (
    CreateLedgerRecord,
    DeleteLedgerRecord,
    EntriesRecord,
    PutRecord,
    Record,
    RemoveRecord,
    decode_body,
)
from managed_ledger.storage.embedded.journal_scan import JournalScan, Torn
from managed_ledger.storage.embedded.journal_writer import (
    FOLDER,
    JournalWriter,
    create_journal,
    generations,
    journal_name,
)
from managed_ledger.storage.embedded.snapshot import Snapshot
from managed_ledger.storage.engine_state import LedgerState

log = logging.getLogger(__name__)


class Recovery:
    """Run once, by a worker thread, before anything else knows of the state."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.ledgers: dict[int, LedgerState] = {}
        self.items: dict[str, Versioned] = {}
        self.next_ledger_id = 0
        self.first_generation = 1
        self._deleted_later: dict[int, str] = {}  # ledgers with entries but no beginning

    def run(self) -> JournalWriter:
        """Raises CorruptStorage and NewerFormat with nothing touched."""
        found = snapshot.read(self._disk)
        if found is not None:
            self._load(found)
        replayed = self._journals(found)
        size, torn = self._replay(replayed)
        self._check_deleted_later()
        if found is not None:
            self._disk.sync_folder(snapshot.FOLDER)
        writer = self._reopen(replayed, size, torn)
        try:
            self._write_format(found)
            self._look_at_files()
            self._remove_leftovers()
        except BaseException:
            writer.close()
            raise
        return writer

    def _write_format(self, found: Snapshot | None) -> None:
        """Before anything is written that earlier versions might misread. A snapshot that holds
        nothing says what none says: all journals are replayed.
        """
        if found is None or found.format != snapshot.FORMAT:
            snapshot.write(self._disk, found or snapshot.EMPTY)

    def _load(self, found: Snapshot) -> None:
        self.first_generation = found.first_generation
        self.next_ledger_id = found.next_ledger_id
        self.items = dict(found.items)
        self.ledgers = {
            ledger_id: LedgerState(ledger_id, flushed) for ledger_id, flushed in found.ledgers
        }

    def _journals(self, found: Snapshot | None) -> list[int]:
        """The generations to replay. One is missing only if it was lost: the snapshot names the
        first, which was there before the snapshot.
        """
        present = generations(self._disk)
        needed = [generation for generation in present if generation >= self.first_generation]
        if found is None and not present and not self._disk.names(ledger_files.FOLDER):
            return []
        last = max(needed, default=self.first_generation)
        for generation in range(self.first_generation, last + 1):
            if generation not in needed:
                raise CorruptStorage(
                    f"{journal_name(generation)} is missing: restore the data directory from a "
                    "backup"
                )
        return needed

    def _replay(self, replayed: list[int]) -> tuple[int, Torn | None]:
        """The length of the last journal, and its torn end."""
        data, torn = b"", None
        for generation in replayed:
            name = journal_name(generation)
            data = read_all(self._disk.open(name))
            scan = JournalScan(name, generation, data, is_last=generation == replayed[-1])
            for body in scan:
                for record in decode_body(body):
                    self._apply(record, name)
            torn = scan.torn
        return len(data), torn

    def _apply(self, record: Record, name: str) -> None:
        match record:
            case EntriesRecord():
                self._apply_entries(record, name)
            case PutRecord(key, stored):
                self.items[key] = stored
            case RemoveRecord(key):
                self.items.pop(key, None)
            case CreateLedgerRecord(ledger_id):
                self.ledgers.setdefault(ledger_id, LedgerState(ledger_id))
                self.next_ledger_id = max(self.next_ledger_id, ledger_id + 1)
            case DeleteLedgerRecord(ledger_id):
                self.ledgers.pop(ledger_id, None)
                self._deleted_later.pop(ledger_id, None)

    def _apply_entries(self, record: EntriesRecord, name: str) -> None:
        """The ledger file may have some of them already; the rest has to follow without a gap."""
        state = self.ledgers.get(record.ledger_id)
        if state is None:
            self._deleted_later[record.ledger_id] = name
            return
        known = state.tail.next_entry_id - record.first_entry_id
        if known < 0:
            raise CorruptStorage(
                f"{name} continues ledger {record.ledger_id} at entry {record.first_entry_id}, but "
                f"entry {state.tail.next_entry_id} is missing: restore the data directory from a "
                "backup"
            )
        state.tail.extend(record.entries[known:], record.message_counts[known:], record.tag)
        state.queued_entries = state.tail.next_entry_id

    def _check_deleted_later(self) -> None:
        """The snapshot may be younger than a journal, and lack a ledger that the journal deletes
        further on; any other ledger has a beginning.
        """
        for ledger_id, name in self._deleted_later.items():
            raise CorruptStorage(
                f"{name} has entries of ledger {ledger_id}, which was never created: restore the "
                "data directory from a backup"
            )

    def _look_at_files(self) -> None:
        """What is missing is said at once, and kept from nobody but who wants to read it."""
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
                "acknowledged, were removed. If nothing crashed, somebody cut the file off, and "
                "what stood behind is missing: restore the data directory from a backup",
                name,
                torn.lost_bytes,
                torn.offset,
            )
            size = torn.offset
            file.truncate(size)
        file.fdatasync()
        self._disk.sync_folder(FOLDER)
        return JournalWriter(self._disk, replayed[-1], file, size)


def read_all(file: DiskFile) -> bytes:
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
