"""Which consumer of a group gets which segments: nobody decides but the set of their names.

So a broker that knows nothing of the past, after a restart or as the topic's new owner, gives each
consumer what it had.
"""

from collections.abc import Iterable, Sequence

from pybroker.broker.scalable.layout import Segment


def assigned(segments: Iterable[Segment], names: Iterable[str]) -> dict[str, tuple[Segment, ...]]:
    """Each segment to one consumer, in turn; without enough segments, some consumers get none."""
    consumers = sorted(names)
    in_order: Sequence[Segment] = sorted(segments, key=lambda each: (each.hash_start, each.id))
    count = len(consumers)
    return {name: tuple(in_order[place::count]) for place, name in enumerate(consumers)}
