"""Why transactions were aborted that did not ask for it, for whoever asks for a commit later.

A reason comes with the status in the log, and lives as long as the outcome does, or until others
need its place.
"""

from collections.abc import Iterator
from typing import Final

MAX_REASONS: Final = 1000  # of one coordinator
MAX_REASON_CHARS: Final = 300


class AbortReasons:
    """By local id, oldest first."""

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}

    def note(self, local_id: int, reason: str) -> None:
        self._reasons[local_id] = reason[:MAX_REASON_CHARS]
        if len(self._reasons) > MAX_REASONS:
            del self._reasons[next(iter(self._reasons))]

    def get(self, local_id: int) -> str:
        """Empty where none is known."""
        return self._reasons.get(local_id, "")

    def items(self) -> Iterator[tuple[int, str]]:
        return iter(list(self._reasons.items()))

    def drop(self, local_id: int) -> None:
        """Its outcome is not known any more."""
        self._reasons.pop(local_id, None)
