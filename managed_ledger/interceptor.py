"""A hook for entries that are appended to a managed ledger, and for those that are shown."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from managed_ledger.storage.backend import EntryRun


class Interceptor(Protocol):
    """Sees entries before they are stored."""

    def stamped(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> Sequence[bytes]:
        """The entries to store instead."""
        ...

    def shown_at_once(self, run: EntryRun) -> EntryRun | None:
        """The run for readers who do not know how its entries were written: as much of it as takes
        a few milliseconds. None if already the first entry takes longer.
        """
        ...

    async def shown(self, run: EntryRun) -> EntryRun:
        """The whole run for those readers; other work runs in between."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Properties to record in the writes that remove entries or begin a ledger."""
        ...
