"""A hook for entries that are appended to a managed ledger."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Interceptor(Protocol):
    """Sees what is appended before it is stored."""

    def stamped(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> Sequence[bytes]:
        """Returns what is stored instead."""
        ...

    def properties(self) -> Mapping[str, str]:
        """Properties to record in the writes that remove entries or begin a ledger."""
        ...
