"""A backend's interface for a move, which fills it with another backend's ledgers.

Ledgers keep their numbers, because message ids and cursors name them. While a move is unfinished
a key in the metadata says so, and no broker starts on the storage.
"""

from typing import Final, Protocol

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.backend import Backend, MetadataStore

MOVE_PREFIX: Final = "move/"  # of the keys that a move keeps in its target until it is complete
STATE_KEY: Final = f"{MOVE_PREFIX}state"
LAST_ID_KEY: Final = f"{MOVE_PREFIX}last-ledger-id"


class LedgerExists(ManagedLedgerError):
    """The target has a ledger of that number that does not belong to this move."""


class UnfinishedMove(ManagedLedgerError):
    """The storage is the target of an unfinished move."""


class ImportTarget(Backend, Protocol):
    def read_back(self, key: str, value: bytes) -> bytes:
        """What `metadata` has of a key into which this value was put: a format of others may have
        no room for its very bytes. Raises CorruptStorage.
        """
        ...

    async def begin_import(self, ledger_id: int, key: str) -> None:
        """Create an empty ledger of that number and, in the same step, the key with an empty value.

        Raises LedgerExists, also if entries of a deleted ledger of that number are left;
        BadVersion if the key exists.
        """
        ...

    async def resume_import(self, ledger_id: int) -> int:
        """Continue with a ledger that `begin_import` created before a crash. Returns the next entry
        to write: 0, even if there are entries, if they are written again. Raises LedgerNotFound,
        LedgerExists.
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
