"""The source and the target of a move."""

from collections.abc import Mapping
from typing import Protocol

from managed_ledger.storage.backend import Backend, EntryRun, LedgerSummary


class Entries(Protocol):
    """The entries of a source or a target."""

    async def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun:
        """Like `LogStorage.read`."""
        ...


class Source(Entries, Protocol):
    """The storage to copy from. It does not change meanwhile."""

    def items(self) -> Mapping[str, bytes]:
        """All keys with their values."""
        ...

    def new_ledger_id(self) -> int:
        """A number higher than all ledger ids that the source has ever used."""
        ...

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        """Determine the end of a ledger that was being written. Raises LedgerNotFound."""
        ...


class BackendSource:
    """An open backend without other users. For a cluster, call `refresh_ledgers` first: its mirror
    has only a part of the data that is stored in ledgers.
    """

    def __init__(self, backend: Backend) -> None:
        self.new_ledger_id = backend.new_ledger_id
        self.recover_ledger = backend.recover_ledger
        self.read = backend.read
        self._metadata = backend.metadata

    def items(self) -> Mapping[str, bytes]:
        found = {key: self._metadata.get(key) for key in self._metadata.keys("")}
        return {key: stored.value for key, stored in found.items() if stored is not None}
