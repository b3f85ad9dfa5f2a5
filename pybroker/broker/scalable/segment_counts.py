"""What the metrics say of the segments of the topics that this broker owns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from managed_ledger.errors import CorruptStorage
from pybroker.base.names import TopicName
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import (
    ACTIVE,
    SEALED,
    SegmentRecord,
    TopicRecord,
    of_segment,
)
from pybroker.broker.scalable.serving import ServesTopics


class _Owned(Protocol):
    def owned(self) -> list[TopicName]: ...

    def find(self, name: TopicName) -> TopicRecord | None:
        """Raises CorruptStorage."""
        ...


class SegmentCounts:
    """A topic whose record is damaged is left out: it would hide the others."""

    def __init__(self, scalable: _Owned, topics: ServesTopics) -> None:
        self._scalable = scalable
        self._topics = topics

    def states(self) -> Counter[str]:
        """The segments by state."""
        found = Counter({ACTIVE: 0, SEALED: 0})
        for _, record in self._records():
            found[ACTIVE] += len(record.active)
            found[SEALED] += len(record.sealed)
        return found

    def unwritable(self) -> int:
        """The number of active segments in memory that take no messages: somebody ended them."""
        return sum(part.terminated for part in self._serving(lambda record: record.active))

    def draining_buckets(self) -> int:
        """The number of entry buckets that wait until their former consumers are done."""
        found = (
            each.dispatch.key_shared
            for part in self._serving(lambda record: record.segments.values())
            for each in part.subscriptions.values()
        )
        return sum(each.draining_buckets for each in found if each is not None)

    def _serving(self, of: Callable[[TopicRecord], Iterable[SegmentRecord]]) -> Iterator[Topic]:
        """The topics in memory of these segments."""
        for name, record in self._records():
            parts = (self._topics.serving(of_segment(name, each)) for each in of(record))
            yield from filter(None, parts)

    def _records(self) -> Iterator[tuple[TopicName, TopicRecord]]:
        for name in self._scalable.owned():
            record = None
            with suppress(CorruptStorage):
                record = self._scalable.find(name)
            if record is not None:
                yield name, record
