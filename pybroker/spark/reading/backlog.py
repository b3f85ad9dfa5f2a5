"""What a stream has before it, for the query's progress, where it is the source's `latestOffset`.

How many entries stand behind the newest batch the broker says exactly, markers and aborted messages
among them. How many messages these hold, and how many bytes, is estimated from a few of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pybroker.spark.offsets import Position
from pybroker.spark.reading.limits import Sample


@dataclass(frozen=True, slots=True)
class Backlog:
    """Of one partition, behind the newest batch."""

    last: Position  # its last message; entry -1 if there is none
    entries: int
    messages: int
    size_bytes: int
    message_bytes: float  # of a message, on average; 0 if nobody looked at one

    @classmethod
    def of(cls, last: Position, entries: int, sample: Sample | None) -> Self:
        if sample is None:
            return cls(last, entries, entries, 0, 0.0)
        return cls(
            last,
            entries,
            round(entries * sample.rows),
            round(entries * sample.size_bytes),
            sample.size_bytes / max(1.0, sample.rows),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "last": str(self.last),
            "backlogEntries": self.entries,
            "backlogMessages": self.messages,
            "backlogBytes": self.size_bytes,
            "messageBytes": round(self.message_bytes, 1),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        return cls(
            Position.parse(given["last"]),
            int(given["backlogEntries"]),
            int(given["backlogMessages"]),
            int(given["backlogBytes"]),
            float(given["messageBytes"]),
        )
