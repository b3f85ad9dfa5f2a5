"""The layout of a topic: its segments, each with a range of hashes and a topic of its own.

An ordinary topic has one segment, and a partitioned topic one for each partition. Its ranges only
inform: clients choose a partition by the key's hash modulo the number of partitions, as ever. The
layout of a scalable topic is what its record says. Source: PIP-475, PIP-460.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TopicName
from pybroker.broker.scalable.buckets import HASHES, Splits
from pybroker.broker.scalable.record import MAX_SEGMENTS, SegmentRecord, TopicRecord, of_segment


class Segment(NamedTuple):
    id: int
    hash_start: int
    hash_end: int  # included
    topic: str  # the topic that clients attach to
    record: SegmentRecord | None = None  # None: of an ordinary topic

    @property
    def sealed(self) -> bool:
        return self.record is not None and self.record.sealed

    @property
    def parents(self) -> tuple[int, ...]:
        return () if self.record is None else self.record.parents

    @property
    def bucket_splits(self) -> Splits:
        return () if self.record is None else self.record.splits

    @property
    def birth(self) -> tuple[int, int] | None:
        """What tells it from a segment of that number in a topic that was created again."""
        return None if self.record is None else (self.record.created_epoch, self.record.created_ms)


@dataclass(frozen=True, eq=False)
class Layout:
    """`eq` is identity: each change makes a new layout. The epoch of a topic never falls, because
    consumers ignore assignments of an earlier one.
    """

    name: TopicName
    segments: tuple[Segment, ...]  # parents come before their children
    made_ms: int
    partitions: int = 0  # of an ordinary topic; 0: not partitioned
    epoch: int = 0

    def says_the_same(self, other: "Layout") -> bool:
        return self.partitions == other.partitions and self.segments == other.segments

    def continues(self, former: "Layout") -> bool:
        """Whether it is the same topic, now or later, and not another one of its name. If nothing
        is left of the former layout, that is unknown, and the answer is no.
        """
        if former.epoch > self.epoch:
            return False
        born = {each.id: each.birth for each in former.segments}
        both = [each for each in self.segments if each.id in born]
        return bool(both) and all(born[each.id] == each.birth for each in both)


def layout_of(name: TopicName, partitions: int, now_ms: int) -> Layout:
    """The layout of an ordinary topic. Raises NotAllowed."""
    if partitions > MAX_SEGMENTS:
        raise NotAllowed(
            f"{name} has {partitions} partitions, and clients of the V5 SDK can use topics of at "
            f"most {MAX_SEGMENTS}: use a 4.x client"
        )
    count = max(1, partitions)
    width = HASHES // count
    segments = (
        Segment(
            index,
            index * width,
            HASHES - 1 if index == count - 1 else (index + 1) * width - 1,
            str(name.partition_at(index) if partitions else name),
        )
        for index in range(count)
    )
    return Layout(name, tuple(segments), now_ms, partitions)


def scalable_layout(name: TopicName, record: TopicRecord, now_ms: int) -> Layout:
    segments = (_segment(name, each) for each in sorted(record.segments.values()))
    return Layout(name, tuple(segments), now_ms, epoch=record.epoch)


@lru_cache(maxsize=2 * MAX_SEGMENTS)
def _segment(name: TopicName, record: SegmentRecord) -> Segment:
    """Cached: a change of a few segments costs little more than these."""
    return Segment(record.id, record.start, record.end, str(of_segment(name, record)), record)
