"""Which segment to split, which two to merge, or which to rebucket, by their load and consumers.
Nothing here waits or measures.

    more consumers in a group than segments   split the busiest, if it is busy enough; otherwise, if
                                              they are more than all entry buckets, rebucket
    a segment above a split threshold         split the one that is furthest above
    two neighbours below all merge thresholds, for a while, that no consumer needs: merge the
                                              two that have least to do

The first that applies is done. A change has to wait for a while after the last one, which the
record tells, so a new owner of the topic knows it, too. Source: PIP-483, PIP-486.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pybroker.broker.scalable.buckets import USUAL_LIMITS
from pybroker.broker.scalable.record import SegmentRecord, TopicRecord

Policy = Mapping[str, Any]  # a complete one


class Load(NamedTuple):
    """Per second."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Situation:
    record: TopicRecord
    loads: Mapping[int, Load]  # by segment; of new ones nothing is known
    cold_s: Mapping[int, float]  # for how long segments have been below all merge thresholds
    consumers: int  # of the largest group
    now_ms: int
    most_buckets: int = USUAL_LIMITS.most  # of a segment


class Change(NamedTuple):
    segments: tuple[int, ...]  # one is to be split, two are to be merged
    why: str
    buckets: int | None = None  # all are to be rebucketed


class Nothing(NamedTuple):
    why: str


# The thresholds, in the order of a load.
_SPLITS: Final = (
    "splitMsgRateInThreshold",
    "splitBytesRateInThreshold",
    "splitMsgRateOutThreshold",
    "splitBytesRateOutThreshold",
)
_MERGES: Final = (
    "mergeMsgRateInThreshold",
    "mergeBytesRateInThreshold",
    "mergeMsgRateOutThreshold",
    "mergeBytesRateOutThreshold",
)
_IDLE: Final = Nothing("no segment has too much to do, and no two have little for long enough")


def is_cold(load: Load, policy: Policy) -> bool:
    return all(has < policy[limit] for has, limit in zip(load, _MERGES, strict=True))


def next_change(now: Situation, policy: Policy) -> Change | Nothing:
    """`policy` is enabled and has no contradiction."""
    if (wanted := _split(now, policy)) is not None:
        if (full := _no_room(now, policy)) is None:
            return _when_cool(now, policy["splitCooldownSeconds"], wanted)
        return _rebucket(now, policy) or _merge(now, policy) or Nothing(f"{wanted.why}, but {full}")
    return _rebucket(now, policy) or _merge(now, policy) or _IDLE


def _split(now: Situation, policy: Policy) -> Change | None:
    known = [
        (now.loads[each.id], each.id)
        for each in now.record.active
        if each.id in now.loads and each.start < each.end
    ]
    if not known:
        return None
    active, least = len(now.record.active), policy["splitVsRebucketMinMsgRateInThreshold"]
    load, busiest = max(known, key=lambda each: each[0].messages_in)
    if now.consumers > active and load.messages_in >= least:
        return Change((busiest,), f"{now.consumers} consumers share {active} segments")
    above, most = max((_above(load, policy), number) for load, number in known)
    if above > 1:
        return Change((most,), f"segment {most} has {above:.1f} times the load of a split")
    return None


def _rebucket(now: Situation, policy: Policy) -> Change | Nothing | None:
    """All segments get the same number of buckets, a power of two, so that there is one for each
    consumer.
    """
    active = now.record.active
    if not active or now.consumers <= sum(each.buckets for each in active):
        return None
    wanted = min(1 << (-(-now.consumers // len(active)) - 1).bit_length(), now.most_buckets)
    few = tuple(each.id for each in active if each.buckets < wanted)
    if not few:
        return None
    why = f"{now.consumers} consumers share {len(active)} segments, which need {wanted} buckets"
    return _when_cool(now, policy["rebucketCooldownSeconds"], Change(few, why, wanted))


def _above(load: Load, policy: Policy) -> float:
    """How many times the nearest threshold of a split."""
    parts = (has / max(policy[limit], 1e-9) for has, limit in zip(load, _SPLITS, strict=True))
    return max(map(float, parts))


def _no_room(now: Situation, policy: Policy) -> str | None:
    most = policy["maxSegments"]
    return f"maxSegments is {most}" if len(now.record.active) >= most else None


def _merge(now: Situation, policy: Policy) -> Change | Nothing | None:
    active = now.record.active
    if len(active) <= max(policy["minSegments"], now.consumers):
        return None
    found = min(_cold_pairs(now, policy), default=None)
    if found is None:
        return None
    _, one, other = found
    change = Change((one, other), f"segments {one} and {other} have little to do")
    return _when_cool(now, policy["mergeCooldownSeconds"], change)


def _cold_pairs(now: Situation, policy: Policy) -> Iterator[tuple[Load, int, int]]:
    window_s, depth = policy["mergeWindowSeconds"], policy["maxDagDepth"]
    merges = _merges(now.record)
    for low, high in pairwise(now.record.active):
        both = low.id, high.id
        if all(now.cold_s.get(each, -1.0) >= window_s for each in both):
            parts = zip(now.loads[low.id], now.loads[high.id], strict=True)
            load = Load(*(one + other for one, other in parts))
            if _above(load, policy) <= 1 and max(merges[each] for each in both) < depth:
                yield load, *both


def _merges(record: TopicRecord) -> dict[int, int]:
    """In the lineage of each segment, as far as the record goes back."""
    found: dict[int, int] = {}
    for each in sorted(record.segments.values()):
        before = max((found[parent] for parent in each.parents), default=0)
        found[each.id] = before + (len(each.parents) > 1 and each.created_epoch > 0)
    return found


def _when_cool(now: Situation, cooldown_s: int, change: Change) -> Change | Nothing:
    past_s = (now.now_ms - max(map(_changed_ms, now.record.active))) / 1000
    if past_s < cooldown_s:
        return Nothing(f"{change.why}, but the last change was {past_s:.0f} s ago")
    return change


def _changed_ms(segment: SegmentRecord) -> int:
    """When a change made it; 0: it was there from the beginning."""
    return segment.created_ms if segment.created_epoch else 0
