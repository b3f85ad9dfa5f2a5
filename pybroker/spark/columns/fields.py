"""Protobuf by columns: the same fields of many messages at once, as vectors.

Messages lie in one buffer, each from a start to an end. All are walked together, one field of each
per step, so the work is a few vector operations for each field of a message, however many messages
there are. The result is positions: numbers become vectors of values, strings and submessages
vectors of starts and lengths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# How far reads may go past the last message: a buffer is padded with as many zeros.
PADDING: Final = 16
_VARINT_BYTES: Final = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Data = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class NotParsed(ValueError):
    """A message is not protobuf, or does not end where it should."""


@dataclass(slots=True)
class Slices:
    """The slice of a byte string in each row; length -1 where a row has none."""

    start: Ints
    length: Ints

    @classmethod
    def none(cls, count: int) -> "Slices":
        return cls(np.zeros(count, np.int64), np.full(count, -1, np.int64))

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        return self.length >= 0


@dataclass(slots=True)
class Repeated:
    """Submessages: their rows, in the rows' order, and their positions."""

    row: Ints
    start: Ints
    length: Ints


@dataclass(slots=True)
class Fields:
    numbers: dict[int, Ints] = field(default_factory=dict)
    slices: dict[int, Slices] = field(default_factory=dict)
    repeated: dict[int, Repeated] = field(default_factory=dict)


def varints(data: Data, at: Ints) -> tuple[Ints, Ints]:
    """The values of varints, and the offsets after them. Raises NotParsed if one has no end."""
    byte = data[at]
    behind = at + 1
    if not (more := byte >= 0x80).any():
        return byte.astype(np.int64), behind
    value = (byte & 0x7F).astype(np.uint64)
    rows = np.flatnonzero(more)
    for shift in range(7, 7 * _VARINT_BYTES, 7):
        byte = data[behind[rows]]
        value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[rows] += 1
        rows = rows[byte >= 0x80]
        if not len(rows):
            return value.view(np.int64), behind
    raise NotParsed("a varint has more than ten bytes")


def read_fields(
    data: Data,
    start: Ints,
    end: Ints,
    *,
    numbers: Mapping[int, int],
    slices: Sequence[int] = (),
    repeated: Sequence[int] = (),
) -> Fields:
    """The fields by number; `numbers` gives the default of each. Other fields are skipped.

    `data` is padded. Raises NotParsed.
    """
    count = len(start)
    walk = _Walk(data, end, slices, repeated)
    found = walk.found
    for number, default in numbers.items():
        found.numbers[number] = np.full(count, default, np.int64)
    for number in slices:
        found.slices[number] = Slices.none(count)
    rows, at = np.arange(count), start.astype(np.int64)
    while True:
        going = at < end[rows]
        if not going.all():
            rows, at = rows[going], at[going]
        if not len(rows):
            break
        at = walk.step(rows, at)
        if (at > end[rows]).any():
            raise NotParsed("a field goes beyond the end of its message")
    walk.gather()
    return found


class _Walk:
    def __init__(
        self, data: Data, end: Ints, slices: Sequence[int], repeated: Sequence[int]
    ) -> None:
        self.found = Fields()
        self._data = data
        self._end = end
        self._slices = slices
        self._repeated: dict[int, list[tuple[Ints, Ints, Ints]]] = {each: [] for each in repeated}

    def step(self, rows: Ints, at: Ints) -> Ints:
        """Steps over one field of each of `rows`."""
        tags, at = varints(self._data, at)
        first = int(tags[0])
        if (tags == first).all():
            return self._field(first, rows, at)
        behind = np.empty_like(at)
        for tag in np.unique(tags):
            chosen = np.flatnonzero(tags == tag)
            behind[chosen] = self._field(int(tag), rows[chosen], at[chosen])
        return behind

    def _field(self, tag: int, rows: Ints, at: Ints) -> Ints:
        number, wire = tag >> 3, tag & 7
        # Reject a field that begins past its message's end before reading it.
        if (at > self._end[rows]).any():
            raise NotParsed("a message ends within a field")
        if wire == _VARINT:
            values, behind = varints(self._data, at)
            if number in self.found.numbers:
                self.found.numbers[number][rows] = values
            return behind
        if wire == _BYTES:
            return self._bytes(number, rows, at)
        if wire in (_FIXED64, _FIXED32):
            return at + (8 if wire == _FIXED64 else 4)
        raise NotParsed(f"unexpected wire type {wire}")

    def _bytes(self, number: int, rows: Ints, at: Ints) -> Ints:
        length, start = varints(self._data, at)
        behind = start + length
        if (length < 0).any() or (behind > self._end[rows]).any():
            raise NotParsed("a string goes beyond the end of its message")
        if number in self._slices:
            self.found.slices[number].start[rows] = start
            self.found.slices[number].length[rows] = length
        elif number in self._repeated:
            self._repeated[number].append((rows, start, length))
        return behind

    def gather(self) -> None:
        for number, parts in self._repeated.items():
            columns = [np.concatenate(each) for each in zip(*parts, strict=True)] if parts else None
            if columns is None:
                columns = [np.zeros(0, np.int64)] * 3
            # Each step has at most one item per row, so within a row the steps are in wire order.
            order = np.argsort(columns[0], kind="stable")
            self.found.repeated[number] = Repeated(*(column[order] for column in columns))


def field_numbers(descriptor: Any) -> dict[str, int]:
    return {each.name: each.number for each in descriptor.fields}
