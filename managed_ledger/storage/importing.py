"""The interface of a backend that is the target of `pybroker move`.

A move copies another backend's ledgers. They keep their numbers, because message ids and cursors
contain them. A key in the metadata marks an unfinished move, and no broker starts on such a
storage.
"""

from typing import Final, Protocol

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.backend import Backend, MetadataStore

MOVE_PREFIX: Final = "move/"  # of the keys that a move keeps in its target until it is complete
STATE_KEY: Final = f"{MOVE_PREFIX}state"
LAST_ID_KEY: Final = f"{MOVE_PREFIX}last-ledger-id"


class LedgerExists(ManagedLedgerError):
    """The target has a ledger of that number which is not part of this move."""


class UnfinishedMove(ManagedLedgerError):
    """The storage is the target of an unfinished move."""


class ImportTarget(Backend, Protocol):
    def read_back(self, key: str, value: bytes) -> bytes:
        """The value that `metadata` returns after `value` was put: the format of another program
        may not preserve every byte. Raises CorruptStorage.
        """
        ...

    async def begin_import(self, ledger_id: int, key: str) -> None:
        """Create an empty ledger of that number and, atomically, the key with an empty value.

        Raises LedgerExists, also if entries of a deleted ledger with that number are left;
        BadVersion if the key exists.
        """
        ...

    async def resume_import(self, ledger_id: int, entries: int) -> int:
        """Continue with a ledger that `begin_import` created before a crash; it shall have so many
        entries. Returns the next entry to write: 0 if the entries already copied must be written
        again. Raises LedgerNotFound, LedgerExists.
        """
        ...

    async def pass_ledger_id(self, ledger_id: int) -> None:
        """From now on, also after a restart, `new_ledger_id` returns higher numbers only."""
        ...


def check_complete(metadata: MetadataStore) -> None:
    """Call before a broker uses the storage. Raises UnfinishedMove."""
    if metadata.get(STATE_KEY) is not None:
        raise UnfinishedMove(
            "`pybroker move` has not finished copying to this storage: repeat that command, which "
            "continues where it ended, or choose another storage"
        )
