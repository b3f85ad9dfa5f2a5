"""How far a stream has been read: positions, the spans between them, and a batch's offset as Spark
stores it.

Spark writes each source's end offset of a batch into its checkpoint before the batch runs, as JSON
chosen by the source. Here it contains, for each partition, the span (after, to] that the batch
reads and the subscription whose cursor is the fence, so that the sink finds both there.

PySpark before 4.2 does not tell a source where a batch begins. If the source does not know it
either, the span has no beginning: the batch then begins at the end of the previous one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

_ACKNOWLEDGED: Final = "acknowledged"
_PUBLISHED: Final = "published"
# What moves the cursor: a sink's transactions, or the source itself.
_FENCE: Final = "subscription"
_FOLLOWER: Final = "cursor"


class Position(NamedTuple):
    """An entry of a topic; entry -1 is the position before a ledger's first."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        ledger_id, _, entry_id = text.partition(":")
        return cls(int(ledger_id), int(entry_id))


# Before all messages of a topic.
EARLIEST: Final = Position(-1, -1)
# The unknown beginning of a batch, if PySpark did not tell it.
UNTOLD: Final = Position(-2, -2)


class Span(NamedTuple):
    """The entries of a partition after `after`, up to and including `to`."""

    after: Position
    to: Position

    @property
    def is_empty(self) -> bool:
        return self.to <= self.after

    def to_json(self) -> dict[str, str]:
        if self.after == UNTOLD:
            return {"to": str(self.to)}
        return {"after": str(self.after), "to": str(self.to)}

    @classmethod
    def from_json(cls, span: Mapping[str, str], before: Mapping[str, str] | None) -> Self:
        to = Position.parse(span["to"])
        if "after" in span:
            return cls(Position.parse(span["after"]), to)
        # A new partition begins with the batch; an empty span stays where it is.
        after = EARLIEST if before is None else Position.parse(before["to"])
        return cls(after, after if to.entry_id < 0 else to)


class Stretch(NamedTuple):
    """Entries from `first` to `last`, both included."""

    first: Position
    last: Position


class CursorName(NamedTuple):
    topic: str
    subscription: str

    def __str__(self) -> str:
        return f"{self.topic} of subscription {self.subscription!r}"


Progress = Mapping[CursorName, Span]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Where a source's batch ends, and where it began.

    `acknowledged`: entries that were individually acknowledged when the query began, after this
    batch's start. `follows`: the source moves the cursor itself, up to what Spark has finished.
    `published_ms`: the publish time of the message at a span's end, if that is a message.
    """

    subscription: str
    spans: Mapping[str, Span]
    acknowledged: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)
    follows: bool = False
    published_ms: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        spans: dict[str, dict[str, Any]] = {
            topic: span.to_json() for topic, span in self.spans.items()
        }
        for topic, published_ms in self.published_ms.items():
            spans[topic][_PUBLISHED] = published_ms
        whose = _FOLLOWER if self.follows else _FENCE
        offset: dict[str, Any] = {whose: self.subscription, "spans": spans}
        acknowledged = {
            topic: [[str(first), str(last)] for first, last in stretches]
            for topic, stretches in self.acknowledged.items()
            if stretches
        }
        return offset | ({_ACKNOWLEDGED: acknowledged} if acknowledged else {})

    @classmethod
    def from_json(cls, offset: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Self:
        """`before`: the end of the previous batch, for spans without a beginning."""
        earlier = {} if before is None else before["spans"]
        spans = {
            topic: Span.from_json(span, earlier.get(topic))
            for topic, span in offset["spans"].items()
        }
        acknowledged = {
            topic: [Stretch(Position.parse(first), Position.parse(last)) for first, last in pairs]
            for topic, pairs in offset.get(_ACKNOWLEDGED, {}).items()
        }
        follows = _FOLLOWER in offset
        subscription = offset[_FOLLOWER if follows else _FENCE]
        published_ms = {
            topic: int(span[_PUBLISHED])
            for topic, span in offset["spans"].items()
            if _PUBLISHED in span
        }
        return cls(subscription, spans, acknowledged, follows, published_ms)

    def progress(self) -> dict[CursorName, Span]:
        """The non-empty spans, by the cursor that passes over them."""
        return {
            CursorName(topic, self.subscription): span
            for topic, span in self.spans.items()
            if not span.is_empty
        }


def is_pulsar_offset(offset: object) -> bool:
    """Whether a line in Spark's offset log is from this format and has a cursor as its fence."""
    return isinstance(offset, dict) and offset.keys() - {_ACKNOWLEDGED} == {_FENCE, "spans"}
