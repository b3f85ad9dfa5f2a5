"""The part of one partition that one task reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from pybroker.spark.offsets import Span, Stretch


@dataclass(frozen=True, slots=True)
class Work:
    topic: str
    span: Span
    # Entries to skip, within the span or after it.
    acknowledged: Sequence[Stretch] = ()
    # The first message to read in the span's first entry, and the last in its last entry.
    first_index: int = 0
    last_index: int | None = None
    # Whether the span's end was a message when it was chosen.
    is_exact: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether all messages of the span are read, and the span ends with one."""
        is_cut = self.first_index > 0 or self.last_index is not None or bool(self.acknowledged)
        return self.is_exact and not is_cut and not self.span.is_empty
