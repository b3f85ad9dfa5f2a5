"""A set of sequence ids (64 bits, not negative) as closed ranges in order, 16 bytes a range."""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from managed_ledger.errors import CorruptStorage

Range = tuple[int, int]


class SequenceRanges:
    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: array[int] = array("Q")
        self._lasts: array[int] = array("Q")
        for first, last in ranges:
            self.add(first, last)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def covers(self, first: int, last: int) -> bool:
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and last <= self._lasts[at]

    def overlaps(self, first: int, last: int) -> bool:
        start, stop = self._touched(first, last)
        return start < stop

    def add(self, first: int, last: int) -> None:
        """Adjacent ranges become one."""
        start, stop = self._touched(first - 1, last + 1)
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._replace(start, stop, [(first, last)])

    def take_out(self, first: int, last: int) -> None:
        """Remove these ids, as far as they are present."""
        start, stop = self._touched(first, last)
        if start == stop:
            return
        edges = ((self._firsts[start], first - 1), (last + 1, self._lasts[stop - 1]))
        self._replace(start, stop, [edge for edge in edges if edge[0] <= edge[1]])

    def copy(self) -> "SequenceRanges":
        other = SequenceRanges()
        other._firsts, other._lasts = self._firsts[:], self._lasts[:]
        return other

    def forget_lowest(self, keep: int) -> int:
        """Keep this many ranges; returns the highest id that was forgotten, -1 for none."""
        surplus = len(self._firsts) - keep
        if surplus <= 0:
            return -1
        highest = self._lasts[surplus - 1]
        del self._firsts[:surplus], self._lasts[:surplus]
        return highest

    def before(self, number: int) -> int:
        """The highest id up to `number` that is not in the set."""
        at = bisect_right(self._firsts, number) - 1
        return self._firsts[at] - 1 if at >= 0 and number <= self._lasts[at] else number

    def encode(self) -> bytes:
        """All first ids, then all last ones, 8 bytes each, least significant first."""
        return _little(self._firsts).tobytes() + _little(self._lasts).tobytes()

    @classmethod
    def decode(cls, value: bytes) -> "SequenceRanges":
        """Raises CorruptStorage if the bytes are not pairs of 64-bit numbers."""
        if len(value) % 16:
            raise CorruptStorage(f"{len(value)} bytes do not encode ranges of sequence ids")
        ranges, half = cls(), len(value) // 2
        ranges._firsts = _little(array("Q", value[:half]))
        ranges._lasts = _little(array("Q", value[half:]))
        return ranges

    def _touched(self, first: int, last: int) -> tuple[int, int]:
        """Indexes of the ranges that overlap this one: the first, and the one after the last."""
        return bisect_left(self._lasts, first), bisect_right(self._firsts, last)

    def _replace(self, start: int, stop: int, ranges: list[Range]) -> None:
        self._firsts[start:stop] = array("Q", [first for first, _ in ranges])
        self._lasts[start:stop] = array("Q", [last for _, last in ranges])


def _little(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
