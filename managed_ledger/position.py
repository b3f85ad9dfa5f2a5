"""The position of an entry in a managed ledger: (ledger id, entry id).

Positions are plain tuples, so comparing them is as cheap as comparing tuples. Entry id -1 means
"before the first entry of this ledger": a legal mark-delete position, but never an entry.
"""

from typing import Final, NamedTuple


class Position(NamedTuple):
    """Ordered by ledger id, then by entry id; both count from 0."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @property
    def before(self) -> "Position":
        """The position just before this one in the same ledger (entry id may become -1)."""
        return Position(self.ledger_id, self.entry_id - 1)

    @property
    def after(self) -> "Position":
        """The position just after this one in the same ledger; the entry need not exist."""
        return Position(self.ledger_id, self.entry_id + 1)


EARLIEST: Final = Position(-1, -1)
LATEST: Final = Position(2**63 - 1, 2**63 - 1)
