"""A hook for entries that are appended to a managed ledger."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Interceptor(Protocol):
    """Sees entries before they are stored."""

    def stamped(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> Sequence[bytes]:
        """The entries to store instead."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Properties to record in the writes that remove entries or begin a ledger."""
        ...
