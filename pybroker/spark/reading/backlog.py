"""A stream's backlog, reported in the query's progress as the source's `latestOffset`.

The number of entries after the newest batch is exact, as counted by the broker, including markers
and aborted messages. The number of messages and bytes is estimated from a sample. The age is that
of the oldest message behind the batch, by its publish time, so by its producer's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pybroker.spark.offsets import Position
from pybroker.spark.reading.limits import Sample


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog of one partition after the newest batch."""

    last: Position  # its last message; entry -1 if there is none
    entries: int
    messages: int
    size_bytes: int
    message_bytes: float  # average size of a message; 0 if none was sampled
    age_ms: int = 0  # 0 also if it is unknown

    @classmethod
    def of(cls, last: Position, entries: int, sample: Sample | None, age_ms: int = 0) -> Self:
        if sample is None:
            return cls(last, entries, entries, 0, 0.0, age_ms)
        return cls(
            last,
            entries,
            round(entries * sample.rows),
            round(entries * sample.size_bytes),
            sample.size_bytes / max(1.0, sample.rows),
            age_ms,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "last": str(self.last),
            "backlogEntries": self.entries,
            "backlogMessages": self.messages,
            "backlogBytes": self.size_bytes,
            "messageBytes": round(self.message_bytes, 1),
            "backlogAgeMs": self.age_ms,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        return cls(
            Position.parse(given["last"]),
            int(given["backlogEntries"]),
            int(given["backlogMessages"]),
            int(given["backlogBytes"]),
            float(given["messageBytes"]),
            int(given.get("backlogAgeMs", 0)),
        )
