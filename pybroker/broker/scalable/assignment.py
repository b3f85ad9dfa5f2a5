"""Which consumer of a group gets which segments: nobody decides but the set of their names.

So a broker that knows nothing of the past, after a restart or as the topic's new owner, gives each
consumer what it had. Stream consumers that outnumber the segments share those with several entry
buckets: up to one consumer for each bucket. Which bucket is whose is decided where it is delivered.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pybroker.broker.scalable.layout import Segment

Shares = Mapping[str, tuple[Segment, ...]]


def assigned(
    segments: Iterable[Segment],
    names: Iterable[str],
    drained: Collection[int] = (),
    sharing: bool = False,
) -> dict[str, tuple[Segment, ...]]:
    """Each segment to one consumer, in turn, and then those that are `drained`: nobody has much to
    do there. Without enough segments, consumers get none, or with `sharing` one that others have.
    """
    consumers, in_order = sorted(names), sorted(segments, key=_place)
    live = [each for each in in_order if each.id not in drained]
    over = [each for each in in_order if each.id in drained]
    count = len(consumers)
    found = {
        name: tuple(sorted([*live[place::count], *over[place::count]], key=_place))
        for place, name in enumerate(consumers)
    }
    if sharing:
        for name, segment in zip(consumers[len(live) :], _places_left(live), strict=False):
            found[name] = (segment, *found[name])
    return found


def shared_by_several(shares: Shares) -> frozenset[int]:
    """The segments that have more than one consumer."""
    having = Counter(each.id for share in shares.values() for each in share)
    return frozenset(number for number, consumers in having.items() if consumers > 1)


def _place(segment: Segment) -> tuple[int, int]:
    return segment.hash_start, segment.id


def _places_left(segments: Sequence[Segment]) -> Iterator[Segment]:
    """For whoever comes after each has a consumer: in turn, as long as they have buckets left."""
    for taken in range(1, max((_buckets(each) for each in segments), default=0)):
        yield from (each for each in segments if taken < _buckets(each))


def _buckets(segment: Segment) -> int:
    return len(segment.bucket_splits) + 1
