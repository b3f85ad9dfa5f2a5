"""Errors of durable logs; each message names the object and says what to do."""


class ManagedLedgerError(Exception):
    """Base class of this package's errors."""


class CorruptStorage(ManagedLedgerError):
    """Bytes that were once durable cannot be read back; nothing was changed on disk."""


class NewerFormat(ManagedLedgerError):
    """A later version wrote the data directory; nothing was changed on disk."""


class DamagedEntries(CorruptStorage):
    """Entries `first` to `last`, inclusive, of a ledger's file cannot be read back."""

    def __init__(self, ledger_id: int, first: int, last: int, why: str) -> None:
        self.ledger_id, self.first, self.last = ledger_id, first, last
        self.what = f"entries {first} to {last} of ledger {ledger_id} cannot be read: {why}"
        super().__init__(
            f"{self.what}; stop the broker and restore the data directory from a backup, or "
            f"continue without them by moving the subscription to ledger {ledger_id}, entry "
            f"{last + 1} (resetcursor)"
        )

    def has(self, position: tuple[int, int]) -> bool:
        return (self.ledger_id, self.first) <= position <= (self.ledger_id, self.last)


class DirectoryInUse(ManagedLedgerError):
    """Another process uses the data directory."""


class BadVersion(ManagedLedgerError):
    """A compare-and-set found an unexpected version: another writer was first."""


class LedgerNotFound(ManagedLedgerError):
    """The ledger was deleted or never existed."""


class LedgerClosed(ManagedLedgerError):
    """The managed ledger was closed, deleted or fenced; nothing more can be appended or read."""


class LedgerEnded(ManagedLedgerError):
    """The ledger accepts no more entries: it was closed after its last durable append. An append
    that fails with this error is not in the ledger and never will be: `Appender` repeats it in the
    next ledger.
    """


class EntryTooLarge(ManagedLedgerError):
    """The storage takes no entry of this size. It was not stored; others are not affected."""


class StorageUnavailable(ManagedLedgerError):
    """The storage cannot do this now; nothing has changed. Retry later."""


class StorageFull(ManagedLedgerError):
    """The disk refused a write for lack of space; the write did not happen."""


class NoDescriptors(StorageFull):
    """A file could not be opened because the process or the system has too many open files."""


class StorageFailed(ManagedLedgerError):
    """The disk failed a write or a sync; its contents are known only after a restart."""
