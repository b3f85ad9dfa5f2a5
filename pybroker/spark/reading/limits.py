"""How much a trigger reads, and how many entries that is.

Offsets count entries, and an entry is a message or a producer's batch of any size. So bytes and
rows are estimated from a few entries at the batch's beginning: the limits are soft, and hold as far
as the next entries resemble those. There are default limits too, so that a backlog of any size is
processed in steps that fit into memory.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from pybroker.spark.options import Chosen

DEFAULT_BYTES: Final = 128 * 1024 * 1024
DEFAULT_ROWS: Final = 1_000_000


class Sample(NamedTuple):
    """The average contents of some consecutive entries."""

    rows: float
    size_bytes: float  # uncompressed


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one trigger, over all partitions."""

    size_bytes: int
    rows: int
    entries: int | None

    @classmethod
    def of(cls, options: Chosen) -> Self:
        """A limit in entries alone is exact, so no estimated limit is added to it."""
        size_bytes, rows = options["maxBytesPerTrigger"], options["maxRowsPerTrigger"]
        entries = options["maxEntriesPerTrigger"]
        if entries is not None and size_bytes is None and rows is None:
            return cls(0, 0, entries)
        return cls(size_bytes or DEFAULT_BYTES, rows or DEFAULT_ROWS, entries)

    @property
    def needs_sample(self) -> bool:
        return self.size_bytes > 0

    def share(self, partitions: int) -> "Limits":
        """The share of one partition if this many have equal shares."""
        entries = None if self.entries is None else max(1, self.entries // partitions)
        return Limits(self.size_bytes // partitions, self.rows // partitions, entries)

    def in_entries(self, sample: Sample | None) -> int:
        """How many entries a batch may have; at least one, so that the stream makes progress."""
        most = [] if self.entries is None else [self.entries]
        if sample is not None:
            most.append(int(self.size_bytes / max(1, sample.size_bytes)))
            most.append(int(self.rows / max(1, sample.rows)))
        return max(1, min(most, default=1))
