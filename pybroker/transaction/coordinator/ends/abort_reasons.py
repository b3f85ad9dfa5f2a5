"""The reasons of aborts that the owner did not request; they explain the refusal of a later commit.

A reason is logged with the status. It is kept as long as the outcome, or until newer reasons
displace it.
"""

from collections.abc import Iterator
from typing import Final

MAX_REASONS: Final = 1000  # per coordinator
MAX_REASON_CHARS: Final = 300


class AbortReasons:
    """The reasons by local id, oldest first."""

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}

    def note(self, local_id: int, reason: str) -> None:
        self._reasons[local_id] = reason[:MAX_REASON_CHARS]
        if len(self._reasons) > MAX_REASONS:
            del self._reasons[next(iter(self._reasons))]

    def get(self, local_id: int) -> str:
        """Empty if no reason is known."""
        return self._reasons.get(local_id, "")

    def items(self) -> Iterator[tuple[int, str]]:
        return iter(list(self._reasons.items()))

    def drop(self, local_id: int) -> None:
        """Forget the reason: the outcome is no longer retained."""
        self._reasons.pop(local_id, None)
