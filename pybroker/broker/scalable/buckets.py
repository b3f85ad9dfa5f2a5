"""Entry buckets: the parts of a segment that several stream consumers can share.

The lower 16 bits of a key's hash choose the bucket. Producers of the V5 SDK store entries that are
within one bucket. A segment's buckets never change: a rebucket gives it a successor. They are kept
as `splits`: the first hashes of all buckets but the first one. Source: PIP-486.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

HASHES: Final = 65_536
Splits = tuple[int, ...]


class BucketLimits(NamedTuple):
    budget: int = 4  # of a new topic, over all its segments
    most: int = 1024  # of one segment


USUAL_LIMITS: Final = BucketLimits()


def equal_buckets(count: int) -> Splits:
    """Of equal ranges, as far as that is possible."""
    return tuple(HASHES * number // count for number in range(1, count))


def at_first(segments: int, limits: BucketLimits) -> Splits:
    """The buckets of each segment of a topic that begins with so many."""
    return equal_buckets(max(1, min(limits.budget // segments, limits.most)))


def bucket_ranges(splits: Iterable[int]) -> list[tuple[int, int]]:
    """Both ends are included."""
    return [(start, end - 1) for start, end in pairwise((0, *splits, HASHES))]


def are_sound(splits: Iterable[int]) -> bool:
    return all(start < end for start, end in pairwise((0, *splits, HASHES)))
