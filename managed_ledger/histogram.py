"""A histogram of measured values: two additions and a binary search for each value."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

# 0.1 ms to 10 s: for operations that wait for a disk.
SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1,
    10,
)


def geometric(first: float, last: float, ratio: float) -> tuple[float, ...]:
    """Bounds for quantiles that are accurate to within `ratio`."""
    bounds = [first]
    while bounds[-1] < last:
        bounds.append(bounds[-1] * ratio)
    return tuple(bounds)


class Histogram:
    """`counts[i]` is the number of values above `bounds[i - 1]` and at most `bounds[i]`; the last
    count is the number of values above all bounds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = array("Q", bytes(8 * (len(bounds) + 1)))
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, and the number of values that do not exceed it."""
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            yield bound, below
