"""What may look at entries on their way into a managed ledger."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Interceptor(Protocol):
    """Sees what is appended before it is stored."""

    def stamped(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> Sequence[bytes]:
        """What is stored instead."""
        ...

    def properties(self) -> Mapping[str, str]:
        """To be noted when entries go, in the same write."""
        ...
