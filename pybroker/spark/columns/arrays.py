"""Building blocks of Arrow columns: arrays from buffer slices and from numbers."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pybroker.spark.columns.fields import Data, Ints, Slices
from pybroker.spark.columns.slab import Pairs

_MS_TO_US: Final = 1000
_LAST_MS: Final = (2**63 - 1) // _MS_TO_US


def vector(values: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Like pa.array of numbers and truth values; null where nothing is present.

    pa.array first checks whether they are pandas objects, and imports pandas for that: a second of
    CPU and 60 MB in each Spark worker, which otherwise needs no pandas.
    """
    count, kind = len(values), pa.from_numpy_dtype(values.dtype)
    if values.dtype == np.bool_:
        values = np.packbits(values, bitorder="little")
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    array = pa.Array.from_buffers(kind, count, [None, buffer])
    return array if present is None else with_nulls(array, present)


def texts(data: Data, slices: Slices) -> pa.Array:
    """Strings; invalid UTF-8 is replaced, as in Java."""
    return as_texts(binaries(data, slices))


def as_texts(found: pa.Array) -> pa.Array:
    """Like `texts`, for an array of byte strings."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if each is None else each.decode(errors="replace") for each in found.to_pylist()],
            pa.string(),
        )


def binaries(data: Data, slices: Slices) -> pa.Array:
    """Binaries; null where a row has none.

    The buffer is treated as an array in which every second item is a row, and the other items are
    the bytes between the rows. So one `take` copies all rows.
    """
    count = len(slices.start)
    present = slices.present
    start, length = slices.start, np.maximum(slices.length, 0)
    if not present.all():
        start = np.where(present, start, 0)
    order = None
    if count > 1 and (start[1:] < start[:-1] + length[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, length = start[order], length[order]
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = start
    offsets[1::2] = start + length
    items = np.arange(0, 2 * count, 2, dtype=np.int32)
    if order is not None:
        items = np.empty(count, np.int32)
        items[order] = np.arange(0, 2 * count, 2, dtype=np.int32)
    if count == 0:
        return pa.nulls(0, pa.binary())
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    found = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers).take(vector(items))
    return with_nulls(found, present)


def with_nulls(array: pa.Array, present: npt.NDArray[np.bool_]) -> pa.Array:
    """Puts nulls into an array that has none, where nothing is present."""
    if present.all():
        return array
    bits = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bits, *array.buffers()[1:]])


def byte_strings(rows: Sequence[bytes | None]) -> pa.Array:
    """The array that pa.array would make."""
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row or b"") for row in rows], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(row or b"" for row in rows))]
    array = pa.Array.from_buffers(pa.binary(), len(rows), buffers)
    return with_nulls(array, np.array([row is not None for row in rows], np.bool_))


def repeated_text(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(encoded)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def times(ms: Ints, present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Null where nothing is present, and for a time outside Spark's range."""
    kind = pa.timestamp("us", "UTC")
    values = pa.py_buffer(ms * _MS_TO_US)
    array = pa.Array.from_buffers(kind, len(ms), [None, values])
    fits = np.abs(ms) <= _LAST_MS
    if present is None and fits.all():
        return array
    return with_nulls(array, fits if present is None else present & fits)


def maps(data: Data, pairs: Pairs, count: int) -> pa.Array:
    """Maps from string to string; empty where a row has none.

    Of equal keys the last one wins, as in Java's maps.
    """
    keys, values, row = texts(data, pairs.key), texts(data, pairs.value), pairs.row
    if len(row) > 1 and (row[1:] == row[:-1]).any():
        last = _last_of_equals(row, keys)
        keys, values, row = keys.take(vector(last)), values.take(vector(last)), row[last]
    offsets = np.searchsorted(row, np.arange(count + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(vector(offsets), keys, values)


def _last_of_equals(row: Ints, keys: pa.Array) -> Ints:
    last: dict[tuple[int, str], int] = {}
    for index, pair in enumerate(zip(row.tolist(), keys.to_pylist(), strict=True)):
        last[pair] = index
    return np.array(sorted(last.values()), np.int64)


class Writer:
    """Byte strings of varying length, one per row, written column by column."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[tuple[npt.NDArray[np.uint8], Ints]] = []

    def varint(self, tag: int, values: Ints, present: npt.NDArray[np.bool_] | None = None) -> None:
        """A field: its tag, and a number as a varint."""
        sizes = np.ones(self._count, np.int64)
        rest = values >> 7
        while rest.any():
            sizes += rest != 0
            rest = rest >> 7
        width = int(np.max(sizes, initial=1))
        block = np.empty((self._count, width + 1), np.uint8)
        block[:, 0] = tag
        for byte in range(width):
            more = sizes > byte + 1
            block[:, byte + 1] = (values >> (7 * byte) & 0x7F) | (more << 7)
        sizes += 1
        self._parts.append((block, sizes if present is None else np.where(present, sizes, 0)))

    def array(self) -> pa.Array:
        lengths = np.sum([sizes for _, sizes in self._parts], axis=0)
        ends = np.cumsum(lengths)
        offsets = np.zeros(self._count + 1, np.int32)
        offsets[1:] = ends
        out = np.empty(int(offsets[-1]), np.uint8)
        at = ends - lengths
        for block, sizes in self._parts:
            for byte in range(block.shape[1]):
                rows = sizes > byte
                if rows.all():
                    out[at + byte] = block[:, byte]
                else:
                    out[at[rows] + byte] = block[rows, byte]
            at = at + sizes
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers)


def message_ids(ledger: Ints, entry: Ints, partition: Ints, index: Ints, size: Ints) -> pa.Array:
    """As Java's MessageId.toByteArray() writes them; `partition` is -1 for a topic without any."""
    writer = Writer(len(ledger))
    writer.varint(0x08, ledger)
    writer.varint(0x10, entry)
    in_partition = partition >= 0
    if in_partition.any():
        writer.varint(0x18, np.maximum(partition, 0), in_partition)
    in_batch = index >= 0
    if in_batch.any():
        writer.varint(0x20, np.maximum(index, 0), in_batch)
        writer.varint(0x30, size, size > 0)
    return writer.array()
