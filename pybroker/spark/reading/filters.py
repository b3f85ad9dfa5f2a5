"""A query's filters, as far as they determine where to read (PySpark 4.1 and newer).

`__topic` chooses partitions, `__messageId` an entry, `__publishTime` a range of entries. Spark
still evaluates every filter itself: reading too much is fine, reading too little is not.

Publish times come from producers' clocks, so a partition is only roughly in their order. Only the
user knows how roughly (publishTimeDisorderMs); without that option all times are read. Let D be the
most by which a message is later than one stored after it. For a time, the broker finds a position
whose message is at or after that time while the message right before is not. If it is asked for the
wanted time minus D, everything before that position is earlier than the wanted time. The same holds
at the other end.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from pybroker.base.names import TopicName
from pybroker.client import MessageId
from pybroker.spark.offsets import EARLIEST, Position, Span
from pybroker.spark.session import Session, position_of

# A metadata column under both of its names.
_TOPIC: Final = ("__topic", "topic")
_TIME: Final = ("__publishTime", "publish_time")
_ID: Final = ("__messageId", "message_id")
NARROWING: Final = frozenset((*_TOPIC, *_TIME, *_ID))

_LAST: Final = Position(2**62, 0)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)

# By class name, because PySpark 4.0 does not have these classes.
_OF_TEXT: Final[Mapping[str, Callable[[str, Any], bool]]] = {
    "EqualTo": lambda text, value: text == value,
    "EqualNullSafe": lambda text, value: text == value,
    "In": lambda text, value: text in value,
    "StringStartsWith": lambda text, value: text.startswith(value),
    "StringEndsWith": lambda text, value: text.endswith(value),
    "StringContains": lambda text, value: value in text,
}


class Place(NamedTuple):
    partition: int | None
    position: Position


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The part that all filters together leave to read; used only in the planner."""

    topics: Sequence[Any] = ()
    from_ms: int | None = None
    to_ms: int | None = None
    places: frozenset[Place] | None = None

    @classmethod
    def of(cls, filters: Iterable[Any], columns: Collection[str]) -> Self:
        """`columns`: the columns that are metadata, not fields of the topic's schema."""
        found = cls()
        for each in filters:
            path: Sequence[str] = getattr(each, "attribute", ())
            if len(path) != 1 or path[0] not in columns:
                continue
            name, kind = path[0], type(each).__name__
            if name in _TOPIC and kind in _OF_TEXT:
                found = replace(found, topics=(*found.topics, each))
            elif name in _TIME:
                found = found._within(*_times(kind, getattr(each, "value", None)))
            elif name in _ID and kind in ("EqualTo", "EqualNullSafe", "In"):
                found = found._at(each.value if kind == "In" else (each.value,))
        return found

    def wants(self, topic: str) -> bool:
        """Whether the filters allow messages of this partition."""
        named = all(_OF_TEXT[type(each).__name__](topic, each.value) for each in self.topics)
        return named and (self.places is None or bool(self._of(topic)))

    def span(self, session: Session, topic: str, disorder_ms: int | None) -> Span | None:
        """The entries that may match; None for all. Without a limit on their disorder, publish
        times do not narrow anything.
        """
        after: Position = EARLIEST
        to: Position | None = None
        if self.from_ms is not None and disorder_ms is not None:
            after = session.before_time(topic, max(0, self.from_ms - disorder_ms))
        if self.to_ms is not None and disorder_ms is not None:
            to = session.before_time(topic, max(0, self.to_ms + disorder_ms + 1))
        if self.places is not None:
            positions = self._of(topic)
            first, last = min(positions), max(positions)
            after = max(after, first._replace(entry_id=first.entry_id - 1))
            to = last if to is None else min(to, last)
        return None if after == EARLIEST and to is None else Span(after, to or _LAST)

    def _of(self, topic: str) -> list[Position]:
        partition = TopicName.parse(topic).partition
        return [
            place.position for place in self.places or () if place.partition in (None, partition)
        ]

    def _within(self, from_ms: int | None, to_ms: int | None) -> Self:
        return replace(
            self,
            from_ms=_of_both(max, self.from_ms, from_ms),
            to_ms=_of_both(min, self.to_ms, to_ms),
        )

    def _at(self, values: Iterable[Any]) -> Self:
        """A value that is not a message id matches nothing. One of several such filters
        suffices.
        """
        if self.places is not None:
            return self
        return replace(self, places=frozenset(place for each in values for place in _places(each)))


def _of_both(choose: Callable[..., int], one: int | None, other: int | None) -> int | None:
    given = [each for each in (one, other) if each is not None]
    return choose(given) if given else None


def _times(kind: str, value: Any) -> tuple[int | None, int | None]:
    """From and to, in ms since 1970, both inclusive."""
    values = [value] if kind != "In" else [each for each in value if each is not None]
    if not values or not all(isinstance(each, dt.datetime) and each.tzinfo for each in values):
        return None, None
    first, last = (min(values) - _EPOCH) // _MS, -((_EPOCH - max(values)) // _MS)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return first, None
    if kind in ("LessThan", "LessThanOrEqual"):
        return None, last
    return (first, last) if kind in ("EqualTo", "EqualNullSafe", "In") else (None, None)


def _places(value: Any) -> list[Place]:
    if not value:
        return []
    try:
        if isinstance(value, str):
            ledger, entry, _ = map(int, value.split(":"))
            return [Place(None, Position(ledger, entry))]
        found = MessageId.deserialize(bytes(value))
        return [Place(found.partition(), position_of(found))]
    except Exception:  # Protobuf's errors are not ValueErrors.
        return []
