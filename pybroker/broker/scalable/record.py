"""The record of a scalable topic: its segments, and how they come from each other.

    ACTIVE ──split, merge, rebucket──▶ SEALED ──pruned──▶ gone
       └──── its children are ACTIVE in the same record

The active segments divide the range of hashes among them, always. A record is a value: each change
makes a new one, whose epoch is one higher. Nothing here waits or stores.
Source: PIP-460, and the JSON of Apache Pulsar 5.0.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from managed_ledger.errors import CorruptStorage
from pybroker.base.errors import NotAllowed, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.scalable.buckets import (
    HASHES,
    USUAL_LIMITS,
    BucketLimits,
    Splits,
    are_sound,
    at_first,
    equal_buckets,
)

MAX_SEGMENTS: Final = 10_000  # of one topic: a layout is sent in one command
ACTIVE: Final = "ACTIVE"
SEALED: Final = "SEALED"
STREAM: Final = "STREAM"
QUEUE: Final = "QUEUE"
_NEVER: Final = -1
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class BadSegments(NotAllowed):
    """A number of segments, or a range, that no topic can have."""

    http_status = 412


class NoSuchSegment(TopicNotFound):
    """The topic has no segment of that number."""


class SegmentRecord(NamedTuple):
    id: int
    start: int  # of the range of hashes
    end: int  # included
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    created_epoch: int = 0
    created_ms: int = 0
    sealed_epoch: int = _NEVER
    sealed_ms: int = _NEVER
    ordinary: str | None = None  # its topic, if that was an ordinary one
    splits: Splits = ()  # where its entry buckets begin, except the first

    @property
    def buckets(self) -> int:
        return len(self.splits) + 1

    @property
    def sealed(self) -> bool:
        return self.sealed_epoch != _NEVER

    def json(self) -> dict[str, Any]:
        return {
            "segmentId": self.id,
            "hashRange": {"start": self.start, "end": self.end},
            "state": SEALED if self.sealed else ACTIVE,
            "parentIds": list(self.parents),
            "childIds": list(self.children),
            "createdAtEpoch": self.created_epoch,
            "sealedAtEpoch": self.sealed_epoch,
            "createdAtMs": self.created_ms,
            "sealedAtMs": self.sealed_ms,
            "entryBucketSplits": list(self.splits),
            **({"legacyTopicName": self.ordinary} if self.ordinary is not None else {}),
        }

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> "SegmentRecord":
        return cls(
            said["segmentId"],
            said["hashRange"]["start"],
            said["hashRange"]["end"],
            tuple(said["parentIds"]),
            tuple(said["childIds"]),
            said["createdAtEpoch"],
            said["createdAtMs"],
            said["sealedAtEpoch"],
            said["sealedAtMs"],
            said.get("legacyTopicName"),
            tuple(said.get("entryBucketSplits") or ()),
        )


@dataclass(frozen=True, slots=True)
class TopicRecord:
    epoch: int
    next_id: int
    segments: Mapping[int, SegmentRecord]
    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: Mapping[str, str] = field(default_factory=dict)  # those made by name: their type
    auto_scale: Mapping[str, Any] = field(default_factory=dict)  # what the topic has of its own
    partitions: int | None = (
        None  # of the ordinary topic that it was, 0: of none; None: it was none
    )

    @property
    def active(self) -> list[SegmentRecord]:
        """In the order of their ranges."""
        found = [each for each in self.segments.values() if not each.sealed]
        return sorted(found, key=lambda each: each.start)

    @property
    def sealed(self) -> list[SegmentRecord]:
        return [each for each in self.segments.values() if each.sealed]

    def segment(self, number: int) -> SegmentRecord:
        """Raises NoSuchSegment if the topic has no segment of this number."""
        if (found := self.segments.get(number)) is None:
            raise NoSuchSegment(f"There is no segment {number}: the topic has {_listed(self)}")
        return found

    def descendants(self, segment: SegmentRecord) -> set[int]:
        found: set[int] = set()
        ahead = list(segment.children)
        while ahead:
            number = ahead.pop()
            if number not in found and (child := self.segments.get(number)) is not None:
                found.add(number)
                ahead += child.children
        return found

    def json(self) -> dict[str, Any]:
        """As Apache Pulsar stores it."""
        return {
            "epoch": self.epoch,
            "nextSegmentId": self.next_id,
            "segments": {str(each.id): each.json() for each in self.segments.values()},
            "properties": dict(self.properties),
            **({"autoScalePolicy": dict(self.auto_scale)} if self.auto_scale else {}),
            "deleted": False,
        }

    def encode(self) -> bytes:
        """A change of a few segments costs little more than these."""
        ours = {"subscriptions": dict(self.subscriptions), "partitions": self.partitions}
        rest = json.dumps(replace(self, segments={}).json() | ours)
        segments = ", ".join(map(_text, self.segments.values()))
        # The first one: only numbers come before it.
        return rest.replace('"segments": {}', f'"segments": {{{segments}}}', 1).encode()


@lru_cache(maxsize=2 * MAX_SEGMENTS)
def _text(segment: SegmentRecord) -> str:
    return f'"{segment.id}": {json.dumps(segment.json())}'


def decode(value: bytes, name: TopicName) -> TopicRecord:
    """Raises CorruptStorage if it does not parse, or its segments do not cover all hashes."""
    try:
        said = json.loads(value)
        segments = [SegmentRecord.of_json(each) for each in said["segments"].values()]
        record = TopicRecord(
            said["epoch"],
            said["nextSegmentId"],
            {each.id: each for each in segments},
            said["properties"],
            said.get("subscriptions", {}),
            said.get("autoScalePolicy") or {},
            said.get("partitions"),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as why:
        raise CorruptStorage(f"the record of {name} cannot be read: {why!r}") from None
    if found := list(gaps(record)):
        raise CorruptStorage(f"the record of {name} cannot be read: no segment has {found[:3]}")
    for each in segments:
        if not are_sound(each.splits):
            sentence = f"segment {each.id} has buckets that begin at {each.splits[:10]}"
            raise CorruptStorage(f"the record of {name} cannot be read: {sentence}")
        for parent in each.parents:
            if parent not in record.segments or parent >= each.id:
                sentence = f"segment {each.id} cannot come from {parent}"
                raise CorruptStorage(f"the record of {name} cannot be read: {sentence}")
    return record


def of_segment(name: TopicName, segment: SegmentRecord) -> TopicName:
    """The segment's topic; `name` is the scalable topic."""
    if segment.ordinary is not None:
        return TopicName.parse(segment.ordinary)
    return name.segment(segment.start, segment.end, segment.id)


def new_record(
    count: int,
    now_ms: int,
    properties: Mapping[str, str] = _NOTHING,
    limits: BucketLimits = USUAL_LIMITS,
) -> TopicRecord:
    """`count` segments of equal ranges; the last takes the rest. Raises BadSegments."""
    if not 1 <= count <= MAX_SEGMENTS:
        raise BadSegments(f"A topic has 1 to {MAX_SEGMENTS} segments at first, not {count}")
    width, splits = HASHES // count, at_first(count, limits)
    ends = [*(width * (index + 1) - 1 for index in range(count - 1)), HASHES - 1]
    segments = (
        SegmentRecord(index, index * width, end, created_ms=now_ms, splits=splits)
        for index, end in enumerate(ends)
    )
    return TopicRecord(0, count, {each.id: each for each in segments}, dict(properties))


def ordinary_parts(name: TopicName, partitions: int) -> list[TopicName]:
    """The partitions of the ordinary topic with this scalable topic's name, or that topic."""
    whole = name._replace(domain="persistent")
    return [whole.partition_at(index) for index in range(partitions)] or [whole]


def migrated(
    name: TopicName,
    partitions: int,
    now_ms: int,
    properties: Mapping[str, str] = _NOTHING,
    limits: BucketLimits = USUAL_LIMITS,
) -> TopicRecord:
    """An ordinary topic, made scalable: its parts are sealed, each over all hashes, because keys
    were divided by another hash. As many segments come after all of them. Raises BadSegments.
    Source: PIP-475.
    """
    parts = ordinary_parts(name, partitions)
    count = len(parts)
    if 2 * count > MAX_SEGMENTS:
        raise BadSegments(
            f"A topic of {count} partitions cannot be made scalable: at most {MAX_SEGMENTS // 2}"
        )
    ids = tuple(range(count, 2 * count))
    parents = [
        SegmentRecord(index, 0, HASHES - 1, (), ids, 0, now_ms, 0, now_ms, str(part))
        for index, part in enumerate(parts)
    ]
    parent_ids = tuple(each.id for each in parents)
    children = [
        each._replace(id=count + each.id, parents=parent_ids)
        for each in new_record(count, now_ms, limits=limits).segments.values()
    ]
    segments = {each.id: each for each in (*parents, *children)}
    return TopicRecord(0, 2 * count, segments, dict(properties), partitions=partitions)


def split(record: TopicRecord, number: int, now_ms: int) -> TopicRecord:
    """Two halves take the segment's place, each with half of its buckets. Raises NoSuchSegment,
    Conflict, BadSegments.
    """
    parent = _active(record, number)
    if parent.start == parent.end:
        raise BadSegments(f"Segment {number} has one hash, {parent.start}: it cannot be split")
    middle, splits = (parent.start + parent.end) // 2, equal_buckets(max(1, parent.buckets // 2))
    halves = [_Successor(parent.start, middle, splits), _Successor(middle + 1, parent.end, splits)]
    return _replaced(record, [parent], halves, now_ms)


def merged(
    record: TopicRecord,
    one: int,
    other: int,
    now_ms: int,
    limits: BucketLimits = USUAL_LIMITS,
) -> TopicRecord:
    """One segment takes the place of two neighbours, with as many buckets as both. Raises
    NoSuchSegment, Conflict, BadSegments.
    """
    low, high = sorted((_active(record, one), _active(record, other)), key=lambda each: each.start)
    if low.end + 1 != high.start:
        raise BadSegments(
            f"Segments {one} and {other} are no neighbours: their ranges are {_range(low)} and "
            f"{_range(high)}"
        )
    splits = equal_buckets(min(low.buckets + high.buckets, limits.most))
    return _replaced(record, [low, high], [_Successor(low.start, high.end, splits)], now_ms)


def rebucketed(
    record: TopicRecord,
    number: int,
    buckets: int,
    now_ms: int,
    limits: BucketLimits = USUAL_LIMITS,
) -> TopicRecord:
    """A segment of the same range, with another number of buckets, takes the segment's place.
    Raises NoSuchSegment, Conflict, BadSegments.
    """
    parent = _active(record, number)
    if not 1 <= buckets <= limits.most:
        raise BadSegments(f"A segment has 1 to {limits.most} entry buckets, not {buckets}")
    if buckets == parent.buckets:
        raise BadSegments(f"Segment {number} has {buckets} entry buckets already")
    successor = _Successor(parent.start, parent.end, equal_buckets(buckets))
    return _replaced(record, [parent], [successor], now_ms)


def pruned(record: TopicRecord, gone: Collection[int]) -> TopicRecord:
    """Without these sealed segments. Their ancestors must be among them, or gone already:
    otherwise nothing would tell that their descendants come after those.
    """
    left = {
        each.id: each._replace(
            parents=tuple(parent for parent in each.parents if parent not in gone),
            children=tuple(child for child in each.children if child not in gone),
        )
        for each in record.segments.values()
        if each.id not in gone
    }
    return replace(record, epoch=record.epoch + 1, segments=left)


def with_subscription(record: TopicRecord, name: str, kind: str | None) -> TopicRecord:
    """None removes it. No layout changes."""
    left = {key: kept for key, kept in record.subscriptions.items() if key != name}
    return replace(record, subscriptions=left if kind is None else {**left, name: kind})


def with_auto_scale(record: TopicRecord, policy: Mapping[str, Any] | None) -> TopicRecord:
    """None removes it. No layout changes."""
    return replace(record, auto_scale=policy or {})


def sealed_by(record: TopicRecord, segment: SegmentRecord) -> str:
    """The operation that sealed the segment."""
    if segment.ordinary is not None:
        return "migrate"
    children = [record.segments[each] for each in segment.children if each in record.segments]
    if any(len(each.parents) > 1 for each in children):
        return "merge"
    return "split" if len(segment.children) > 1 else "rebucket"


class _Successor(NamedTuple):
    start: int
    end: int
    splits: Splits


def _replaced(
    record: TopicRecord,
    parents: list[SegmentRecord],
    successors: list[_Successor],
    now_ms: int,
) -> TopicRecord:
    """The parents are sealed by the record that has their children: one cannot be without the
    other.
    """
    if len(record.segments) + len(successors) > MAX_SEGMENTS:
        raise BadSegments(
            f"The topic has {len(record.segments)} segments with the sealed ones, and may have "
            f"{MAX_SEGMENTS}: consume the sealed ones, so that they can be pruned"
        )
    epoch, first = record.epoch + 1, record.next_id
    ids, parent_ids = (
        tuple(range(first, first + len(successors))),
        tuple(each.id for each in parents),
    )
    sealed = {
        each.id: each._replace(children=ids, sealed_epoch=epoch, sealed_ms=now_ms)
        for each in parents
    }
    made = {
        number: SegmentRecord(
            number, each.start, each.end, parent_ids, (), epoch, now_ms, splits=each.splits
        )
        for number, each in zip(ids, successors, strict=True)
    }
    segments = {**record.segments, **sealed, **made}
    return replace(record, epoch=epoch, next_id=first + len(successors), segments=segments)


def _active(record: TopicRecord, number: int) -> SegmentRecord:
    found = record.segment(number)
    if found.sealed:
        raise Conflict(
            f"Segment {number} was sealed: its messages go to {_numbers(found.children)} now"
        )
    return found


def gaps(record: TopicRecord) -> Iterator[tuple[int, int]]:
    """Where two neighbours of the active segments do not meet: nowhere, in a sound record."""
    at = 0
    for each in record.active:
        if each.start != at:
            yield at, each.start
        at = each.end + 1
    if at != HASHES:
        yield at, HASHES


def _range(segment: SegmentRecord) -> str:
    return f"{segment.start:04x}-{segment.end:04x}"


def _numbers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids)) or "none"


def _listed(record: TopicRecord) -> str:
    return _numbers(each.id for each in record.active)[:200]
