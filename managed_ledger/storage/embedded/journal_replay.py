"""Reads a data directory: the snapshot, and the journals since.

Nothing is written here.
"""

from typing import Final

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
from managed_ledger.storage.embedded.journal_writer import generations, journal_name
from managed_ledger.storage.embedded.snapshot import Snapshot
from managed_ledger.storage.engine_state import LedgerState

_JOURNAL_AT_MOST: Final = 1024**3  # bytes; far more than a journal ever holds


class Replay:
    """The state that `replay` has found, up to the first error."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.found: Snapshot | None = None
        self.ledgers: dict[int, LedgerState] = {}
        self.items: dict[str, Versioned] = {}
        self.next_ledger_id = 0
        self.first_generation = 1
        self.journals: list[int] = []  # the generations to replay
        self.last_journal_bytes = 0
        self.torn: Torn | None = None  # the end of the last journal
        self.complete = False
        self.corrupt: JournalScan | None = None  # the journal at which the replay stopped
        self._deleted_later: dict[int, str] = {}  # ledgers with entries but no beginning

    def replay(self) -> None:
        """Raises CorruptStorage for damage, NewerFormat if a later version wrote the directory."""
        self.found = snapshot.read(self._disk)
        if self.found is not None:
            self._load(self.found)
        self.journals = self._journals(self.found)
        self._replay(self.journals)
        self._check_deleted_later()
        self.complete = True

    def _load(self, found: Snapshot) -> None:
        self.first_generation = found.first_generation
        self.next_ledger_id = found.next_ledger_id
        self.items = dict(found.items)
        self.ledgers = {
            ledger_id: LedgerState(ledger_id, flushed) for ledger_id, flushed in found.ledgers
        }

    def _journals(self, found: Snapshot | None) -> list[int]:
        """The generations to replay. The snapshot names the first of them, which was created before
        the snapshot, so a missing journal means that it was lost.
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

    def _replay(self, replayed: list[int]) -> None:
        for generation in replayed:
            name = journal_name(generation)
            data = _read_all(self._disk.open(name), name)
            scan = JournalScan(name, generation, data, is_last=generation == replayed[-1])
            try:
                for body in scan:
                    for record in decode_body(body):
                        self._apply(record, name)
            except CorruptStorage:
                self.corrupt = scan
                raise
            self.last_journal_bytes, self.torn = len(data), scan.torn

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
        """The ledger's file may already have some of the entries; the rest must follow without a
        gap.
        """
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
        """The snapshot may be newer than a journal and lack a ledger that the journals delete
        later. Entries of any other unknown ledger are corruption.
        """
        for ledger_id, name in self._deleted_later.items():
            raise CorruptStorage(
                f"{name} has entries of ledger {ledger_id}, which was never created: restore the "
                "data directory from a backup"
            )


def _read_all(file: DiskFile, name: str) -> bytes:
    try:
        size = file.size()
        if size > _JOURNAL_AT_MOST:
            raise CorruptStorage(
                f"{name} is {size:,} bytes long, longer than any journal: check the file system, "
                "and restore the data directory from a backup"
            )
        return file.pread(size, 0)
    finally:
        file.close()
