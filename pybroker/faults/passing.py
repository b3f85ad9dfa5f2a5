"""A passing of a fault point, with what is known there; and the predicates that select passings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from pybroker.base.errors import InvalidTopicName
from pybroker.base.names import TopicName
from pybroker.faults.points import TOPIC

_DEFAULT_NAMESPACE = "public/default/"
_GLOB = frozenset("*?[")


@dataclass(slots=True)
class Passing:
    """One command, message, delivery or record at a point. Unknown values are empty."""

    point: str
    topic: str = ""  # persistent://tenant/namespace/local
    subscription: str = ""
    producer: str = ""
    transaction: str = ""  # (most,least)
    connection: int | None = None  # the connection's number, counted from the broker's start
    client: str = ""  # host:port
    positions: Sequence[tuple[int, int]] = ()  # ledger id, entry id
    messages: int = 0
    entries: Sequence[bytes] = field(default=(), repr=False)  # as stored
    detail: str = ""  # further information in words: "commit", "cumulative"
    error: str = ""  # the error that refused the step; then no rule strikes
    topics: Sequence[str] = ()  # all topics of a command that names several
    struck: str = ""  # the action of the rule that struck, if one did

    @property
    def position(self) -> tuple[int, int] | None:
        """The first position."""
        return self.positions[0] if self.positions else None


def matches(predicates: Mapping[str, str], passing: Passing) -> bool:
    return all(_matches(name, pattern, passing) for name, pattern in predicates.items())


def _matches(name: str, pattern: str, passing: Passing) -> bool:
    if name == TOPIC:
        topics = passing.topics or (passing.topic,)
        return any(_is_like(each, pattern) for topic in topics for each in _spellings(topic))
    value: str = getattr(passing, name)
    return _is_like(value, pattern)


def _is_like(value: str, pattern: str) -> bool:
    if value == pattern:
        return bool(value)
    return bool(value) and bool(_GLOB & set(pattern)) and fnmatchcase(value, pattern)


def _spellings(topic: str) -> Iterator[str]:
    """All spellings of a topic; for a partition also those of its partitioned topic."""
    yield topic
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName:
        return
    for each in dict.fromkeys((name, name.partitioned_name)):
        yield str(each)
        short = str(each).partition("://")[2]
        yield short
        yield short.removeprefix(_DEFAULT_NAMESPACE)
