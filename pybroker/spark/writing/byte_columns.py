"""Columns of byte strings, built and joined without an object per row.

The bytes that a format puts around a value (lengths, tags, numbers) are a column, too: numpy
computes them for all rows at once, and Arrow joins them with the values. A part that is the same in
each row is plain bytes. Readers import this module with the rest of the package, so only the
encoders import pyarrow.compute, which takes 50 ms.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
# A column of byte strings, or one value for all rows.
Part: TypeAlias = "pa.LargeBinaryArray | bytes"

_KIND: Final = pa.large_binary()
_MAX_VARINT_BYTES: Final = 10


def of(array: pa.Array) -> pa.LargeBinaryArray:
    """Strings and byte strings of any kind, unchanged; null becomes an empty one."""
    return array.cast(_KIND).fill_null(b"")


def of_matrix(matrix: Matrix) -> pa.LargeBinaryArray:
    """One byte string for each row of the matrix."""
    rows, width = matrix.shape
    return _array(np.arange(rows + 1, dtype=np.int64) * width, matrix)


def _array(offsets: Numbers, data: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(_KIND, len(offsets) - 1, buffers)


def offsets(column: pa.LargeBinaryArray) -> Numbers:
    """Offsets into `data`, one more than rows."""
    found = np.frombuffer(column.buffers()[1], np.int64)
    return found[column.offset : column.offset + len(column) + 1]


def data(column: pa.LargeBinaryArray) -> memoryview:
    buffer = column.buffers()[2]
    return memoryview(b"") if buffer is None else memoryview(buffer)


def lengths(part: Part, rows: int) -> Numbers:
    if isinstance(part, bytes):
        return np.full(rows, len(part), np.int64)
    return np.diff(offsets(part))


def varints(values: Any) -> Part:
    """Protobuf varints of an array of non-negative numbers."""
    if len(values) and (first := values[0]) == values.max() == values.min():
        return bytes(_varint_matrix(first.reshape(1))[0][0][: _sizes(first.reshape(1))[0]])
    matrix, sizes = _varint_matrix(values)
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    width = matrix.shape[1]
    return _array(ends, matrix[np.arange(width) < sizes[:, None]])


def _varint_matrix(values: Numbers) -> tuple[Matrix, Numbers]:
    sizes = _sizes(values)
    width = int(np.max(sizes, initial=1))
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    septets = (values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    more = np.arange(width) < sizes[:, None] - 1
    return (septets | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8), sizes


def _sizes(values: Numbers) -> Numbers:
    limits = np.uint64(1) << (np.arange(1, _MAX_VARINT_BYTES, dtype=np.uint64) * np.uint64(7))
    return np.searchsorted(limits, values.astype(np.uint64), side="right") + 1


def big_endian_u32(values: Numbers) -> Part:
    if len(values) and (first := values[0]) == np.max(values) == np.min(values):
        return int(first).to_bytes(4, "big")
    return of_matrix(values.astype(">u4").view(np.uint8).reshape(-1, 4))


def only(mask: Mask, part: Part) -> Part:
    """The values where the mask is set; elsewhere empty."""
    if mask.all():
        return part
    return either(mask, part, b"")


def either(mask: Mask, there: Part, otherwise: bytes) -> Part:
    """`there` where the mask is set."""
    import pyarrow.compute as pc

    return pc.if_else(pa.array(mask), there, otherwise).cast(_KIND)


def joined(parts: Sequence[Part], rows: int) -> pa.LargeBinaryArray:
    """Concatenates each row's parts."""
    import pyarrow.compute as pc

    if all(isinstance(part, bytes) for part in parts):
        return of_matrix(np.tile(np.frombuffer(b"".join(parts), np.uint8), (rows, 1)))
    operands = [pa.scalar(part, _KIND) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*operands, pa.scalar(b"", _KIND))


def runs(column: pa.LargeBinaryArray, ends: Numbers) -> pa.LargeBinaryArray:
    """Row i is rows ends[i] to ends[i + 1] joined, without copying a byte."""
    places = offsets(column)[ends]
    buffers = [None, pa.py_buffer(np.ascontiguousarray(places)), pa.py_buffer(data(column))]
    return pa.Array.from_buffers(_KIND, len(ends) - 1, buffers)
