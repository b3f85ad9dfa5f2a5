"""Limits of a managed ledger, and its clock."""

from dataclasses import dataclass, field
from typing import Final, Protocol

from managed_ledger.trim import Retention

# The maximum for an entry; it also limits the bitsets of batch indexes.
MAX_MESSAGES_PER_ENTRY: Final = 1_000_000
ANY_BATCH: Final = (1 << MAX_MESSAGES_PER_ENTRY) - 1  # a bit for each batch index


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time: milliseconds since 1970."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        ...


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """A ledger is closed at the maximum age, or at a size limit if it has the minimum age."""

    max_entries_per_ledger: int = 50_000
    max_size_per_ledger_bytes: int = 2 * 1024**3
    min_rollover_time_ms: int = 10 * 60_000
    max_rollover_time_ms: int = 4 * 3_600_000
    cursor_flush_interval_ms: int = 1000  # from the first acknowledgement to the write
    retention: Retention = field(default_factory=Retention)
