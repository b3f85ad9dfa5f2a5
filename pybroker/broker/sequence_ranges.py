"""A bounded set of sequence ids, kept as closed ranges in order; the lowest are forgotten first."""

from bisect import bisect_left, bisect_right
from typing import Final

MAX_RANGES: Final = 1000
Range = tuple[int, int]


class SequenceRanges:
    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def all(self) -> list[Range]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def covers(self, first: int, last: int) -> bool:
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self._lasts[at]

    def overlaps(self, first: int, last: int) -> bool:
        start, stop = self._touched(first, last)
        return start < stop

    def add(self, first: int, last: int) -> None:
        """Neighbours become one range."""
        start, stop = self._touched(first - 1, last + 1)
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._replace(start, stop, [(first, last)])
        if len(self._firsts) > MAX_RANGES:
            del self._firsts[0], self._lasts[0]

    def take_out(self, first: int, last: int) -> list[Range]:
        """Remove these ids; returns those that were there."""
        start, stop = self._touched(first, last)
        taken: list[Range] = []
        left: list[Range] = []
        for index in range(start, stop):
            low, high = self._firsts[index], self._lasts[index]
            taken.append((max(low, first), min(high, last)))
            left += [r for r in ((low, first - 1), (last + 1, high)) if r[0] <= r[1]]
        self._replace(start, stop, left)
        return taken

    def before(self, number: int) -> int:
        """The highest id up to `number` that is not here."""
        at = bisect_right(self._firsts, number) - 1
        return self._firsts[at] - 1 if at >= 0 and number <= self._lasts[at] else number

    def _touched(self, first: int, last: int) -> tuple[int, int]:
        """Indexes of the ranges that have an id in common with this one."""
        return bisect_left(self._lasts, first), bisect_right(self._firsts, last)

    def _replace(self, start: int, stop: int, ranges: list[Range]) -> None:
        self._firsts[start:stop] = [first for first, _ in ranges]
        self._lasts[start:stop] = [last for _, last in ranges]
