"""The layout of a topic: its segments, each with a range of the keys' hashes.

A key's Murmur3 hash has 32 bits, and the upper 16 choose the segment. A topic that was made with
partitions has a segment for each, which a key chooses as it does with Murmur3_32Hash.
Source: PIP-460, PIP-475.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pybroker.base.names import any_topic
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.producing.routing import murmur3_32, murmur3_hash
from pybroker.wire import pulsar_api_pb2 as pb


class Segment(NamedTuple):
    id: int
    start: int  # of the range of hashes
    end: int  # included
    topic: str  # to which producers and consumers attach
    is_sealed: bool
    is_ordinary: bool  # an ordinary topic or a partition of one
    parents: tuple[int, ...] = ()
    splits: tuple[int, ...] = ()  # where its entry buckets begin, except the first

    def overlaps(self, other: "Segment") -> bool:
        """Whether both may have messages of one key."""
        if self.is_ordinary != other.is_ordinary:
            return True
        return self.start <= other.end and other.start <= self.end


@dataclass(frozen=True)
class Layout:
    epoch: int
    segments: Mapping[int, Segment]

    @cached_property
    def active(self) -> Sequence[Segment]:
        """Those that take messages, in the order of their ranges."""
        found = (each for each in self.segments.values() if not each.is_sealed)
        return sorted(found, key=lambda each: (each.start, each.id))

    @cached_property
    def is_ordinary(self) -> bool:
        return all(each.is_ordinary for each in self.active)

    def segment_of(self, key: str) -> Segment:
        """Where messages with this key go."""
        if self.is_ordinary:
            return self._partitions[murmur3_hash(key) % len(self._partitions)]
        wanted = murmur3_32(key) >> 16
        found = self.active[bisect_right(self._starts, wanted) - 1]
        if not found.start <= wanted <= found.end:
            raise InvalidConfiguration(f"No segment has hash {wanted:04x} of key {key[:200]!r}")
        return found

    @cached_property
    def _starts(self) -> Sequence[int]:
        return [each.start for each in self.active]

    @cached_property
    def _partitions(self) -> Sequence[Segment]:
        return sorted(self.active, key=lambda each: each.id)


def layout_of(update: pb.CommandScalableTopicUpdate) -> Layout:
    name = any_topic(update.resolved_topic_name)
    segments = (
        Segment(
            each.segment_id,
            each.hash_start,
            each.hash_end,
            each.legacy_topic_name
            or str(name.segment(each.hash_start, each.hash_end, each.segment_id)),
            each.state == pb.SEALED,
            each.HasField("legacy_topic_name"),
            tuple(each.parent_ids),
            tuple(each.entry_bucket_splits),
        )
        for each in update.dag.segments
    )
    return Layout(update.dag.epoch, {each.id: each for each in segments})
