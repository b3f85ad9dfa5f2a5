"""What one task reads of one partition."""

from collections.abc import Sequence
from dataclasses import dataclass

from pybroker.spark.offsets import Span, Stretch


@dataclass(frozen=True, slots=True)
class Work:
    topic: str
    span: Span
    # Not to be read, be it within the span or behind it.
    acknowledged: Sequence[Stretch] = ()
    # Of the span's first entry, the first message; and of its last entry, the last.
    first_index: int = 0
    last_index: int | None = None
    # Whether the span's end was a message when it was chosen.
    is_exact: bool = True

    @property
    def is_plain(self) -> bool:
        """All messages within the span, which ends with one."""
        is_cut = self.first_index > 0 or self.last_index is not None or bool(self.acknowledged)
        return self.is_exact and not is_cut and not self.span.is_empty
