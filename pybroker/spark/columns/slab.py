"""Stored entries as vectors: for each row, the position of its value and key, and its times.

Entries are concatenated in one buffer, followed by decompressed and joined payloads; everything
else is a position in that buffer. A row is a message: a whole entry, or one message of its batch.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from managed_ledger.checksum import crc32c
from pybroker.base.errors import PulsarError
from pybroker.client import PulsarException
from pybroker.client.compression import codec
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.client.consuming.received import MAX_MESSAGE_BYTES
from pybroker.spark.columns.batches import message_starts
from pybroker.spark.columns.fields import (
    PADDING,
    Data,
    Fields,
    Ints,
    NotParsed,
    Repeated,
    Slices,
    field_numbers,
    read_fields,
)
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CHECKSUM_MAGIC

_ENTRY: Final = field_numbers(pb.MessageMetadata.DESCRIPTOR)
_SINGLE: Final = field_numbers(pb.SingleMessageMetadata.DESCRIPTOR)
_KEY_VALUE: Final = field_numbers(pb.KeyValue.DESCRIPTOR)
_ABSENT: Final = -1
_MAX_BATCH_MESSAGES: Final = 1_000_000
_HEAD: Final = struct.Struct(">HI")
_SIZE_BYTES: Final = 4

_ENTRY_NUMBERS: Final = {
    _ENTRY["publish_time"]: 0,
    _ENTRY["event_time"]: 0,
    _ENTRY["compression"]: 0,
    _ENTRY["uncompressed_size"]: 0,
    _ENTRY["num_messages_in_batch"]: _ABSENT,
    _ENTRY["partition_key_b64_encoded"]: 0,
    _ENTRY["null_value"]: 0,
    _ENTRY["null_partition_key"]: 0,
    _ENTRY["num_chunks_from_msg"]: 0,
    _ENTRY["chunk_id"]: 0,
    _ENTRY["total_chunk_msg_size"]: 0,
}
_ENTRY_SLICES: Final = tuple(
    _ENTRY[name] for name in ("partition_key", "encryption_keys", "schema_version", "uuid")
)
_SINGLE_NUMBERS: Final = {
    _SINGLE["payload_size"]: 0,
    _SINGLE["event_time"]: 0,
    _SINGLE["partition_key_b64_encoded"]: 0,
    _SINGLE["null_value"]: 0,
    _SINGLE["null_partition_key"]: 0,
    _SINGLE["compacted_out"]: 0,
}


class DamagedEntry(PulsarError):
    """An entry that cannot be read."""

    def __init__(self, entry: StoredEntry, reason: str) -> None:
        super().__init__(f"entry {entry.ledger_id}:{entry.entry_id} {reason}")
        self.entry = entry


@dataclass(slots=True)
class Pairs:
    """Properties and the row of each, in the rows' order."""

    row: Ints
    key: Slices
    value: Slices


@dataclass(slots=True)
class Slab:
    """Rows of one topic, in its order; all vectors except `properties` have one item per row."""

    data: Data
    ledger: Ints
    entry: Ints
    batch_index: Ints  # -1 for a message outside a batch
    batch_size: Ints  # 0 for a message outside a batch
    value: Slices
    key: Slices
    key_is_base64: npt.NDArray[np.bool_]
    publish_time_ms: Ints
    event_time_ms: Ints  # 0 for none
    properties: Pairs
    schema_version: Slices
    of_entry: Ints  # the index of each row's entry

    @property
    def rows(self) -> int:
        return len(self.ledger)


@dataclass(slots=True)
class Heads:
    """Entries whose metadata has been read."""

    entries: Sequence[StoredEntry]
    blob: bytes
    data: Data
    start: Ints  # where each entry begins in the blob
    payload: Ints  # where its payload begins
    end: Ints
    fields: Fields

    def number(self, name: str) -> Ints:
        return self.fields.numbers[_ENTRY[name]]

    def slices(self, name: str) -> Slices:
        return self.fields.slices[_ENTRY[name]]

    @property
    def is_encrypted(self) -> npt.NDArray[np.bool_]:
        return self.slices("encryption_keys").present

    @property
    def is_chunk(self) -> npt.NDArray[np.bool_]:
        return self.number("num_chunks_from_msg") > 1

    def payload_of(self, index: int) -> bytes:
        return self.blob[int(self.payload[index]) : int(self.end[index])]


def read_heads(entries: Sequence[StoredEntry]) -> Heads:
    """Raises DamagedEntry for the first entry whose metadata does not parse."""
    for each in entries:
        _check(each)
    blob = b"".join([each.data for each in entries] + [bytes(PADDING)])
    data = np.frombuffer(blob, np.uint8)
    sizes = np.array([len(each.data) for each in entries], np.int64)
    end = np.cumsum(sizes)
    start = end - sizes
    magic = (data[start] == CHECKSUM_MAGIC >> 8) & (data[start + 1] == CHECKSUM_MAGIC & 0xFF)
    metadata = start + np.where(magic, _HEAD.size, 0) + _SIZE_BYTES
    payload = metadata + _sizes(data, metadata - _SIZE_BYTES)
    torn = np.flatnonzero(payload > end)
    if len(torn):
        raise DamagedEntry(entries[torn[0]], "is shorter than its declared size")
    try:
        fields = _entry_fields(data, metadata, payload)
    except NotParsed as error:
        if len(entries) == 1:
            raise DamagedEntry(entries[0], f"has metadata that does not parse: {error}") from error
        for each in entries:
            read_heads([each])
        raise AssertionError("some entry does not parse, yet each one does") from error
    return Heads(entries, blob, data, start, payload, end, fields)


def _check(entry: StoredEntry) -> None:
    data = entry.data
    if len(data) < _SIZE_BYTES:
        raise DamagedEntry(entry, "has no metadata")
    if len(data) < _HEAD.size + _SIZE_BYTES:
        return
    magic, checksum = _HEAD.unpack_from(data)
    if magic == CHECKSUM_MAGIC and crc32c(memoryview(data)[_HEAD.size :]) != checksum:
        raise DamagedEntry(entry, "has a wrong checksum")


def _sizes(data: Data, at: Ints) -> Ints:
    """Big-endian u32s."""
    size = np.zeros(len(at), np.int64)
    for byte in range(_SIZE_BYTES):
        size = size << 8 | data[at + byte]
    return size


def _entry_fields(data: Data, start: Ints, end: Ints) -> Fields:
    return read_fields(
        data,
        start,
        end,
        numbers=_ENTRY_NUMBERS,
        slices=_ENTRY_SLICES,
        repeated=(_ENTRY["properties"],),
    )


def slab_of(
    heads: Heads,
    payloads: Sequence[bytes | None],
    left_out: npt.NDArray[np.bool_] | None = None,
) -> Slab:
    """The rows of entries that are not encrypted.

    `payloads`: for each entry, a replacement for its payload (for a chunked message), or None.
    `left_out`: entries that are not messages by themselves. Raises DamagedEntry,
    UnsupportedCompression.
    """
    if left_out is not None and left_out.any():
        heads.number("compression")[left_out] = 0
        slab = slab_of(heads, payloads)
        return only(slab, ~left_out[slab.of_entry])
    try:
        return _slab_of(heads, payloads)
    except NotParsed as error:
        if len(heads.entries) == 1:
            raise DamagedEntry(heads.entries[0], f"does not parse: {error}") from error
    for entry, payload in zip(heads.entries, payloads, strict=True):
        slab_of(read_heads([entry]), [payload])
    raise AssertionError("some entry does not parse, yet each one does")


def _slab_of(heads: Heads, payloads: Sequence[bytes | None]) -> Slab:
    blob, data, start, end = _unpacked(heads, payloads)
    sizes = heads.number("num_messages_in_batch")
    wrong = (sizes != _ABSENT) & ((sizes < 1) | (sizes > _MAX_BATCH_MESSAGES))
    if wrong.any():
        index = int(np.argmax(wrong))
        raise DamagedEntry(heads.entries[index], f"is a batch of {sizes[index]} messages")
    rows = _Rows(heads, data, start, end)
    batched = np.flatnonzero(sizes != _ABSENT)
    if len(batched):
        rows.add_batches(blob, batched)
    return rows.slab()


def _unpacked(heads: Heads, payloads: Sequence[bytes | None]) -> tuple[bytes, Data, Ints, Ints]:
    """The buffer, and where each entry's payload begins and ends in it."""
    compression = heads.number("compression")
    changed = [i for i, each in enumerate(payloads) if each is not None or compression[i]]
    if not changed:
        return heads.blob, heads.data, heads.payload, heads.end
    start, end = heads.payload.copy(), heads.end.copy()
    parts, size = [heads.blob], len(heads.blob)
    for index in changed:
        given = payloads[index]
        packed = heads.payload_of(index) if given is None else given
        plain = _decompressed(heads, index, packed)
        parts.append(plain)
        start[index], end[index] = size, size + len(plain)
        size += len(plain)
    blob = b"".join([*parts, bytes(PADDING)])
    return blob, np.frombuffer(blob, np.uint8), start, end


def _decompressed(heads: Heads, index: int, packed: bytes) -> bytes:
    compression = int(heads.number("compression")[index])
    if not compression:
        return packed
    size, entry = int(heads.number("uncompressed_size")[index]), heads.entries[index]
    if size > MAX_MESSAGE_BYTES:
        raise DamagedEntry(entry, f"declares an uncompressed size of {size} bytes")
    decompress = codec(compression).decompress
    try:
        plain = decompress(packed, size)
    except PulsarException:
        raise
    except Exception as error:  # Every codec has its own exceptions.
        raise DamagedEntry(entry, f"does not decompress: {error}") from error
    if len(plain) != size:
        raise DamagedEntry(entry, f"has {len(plain)} bytes uncompressed instead of {size}")
    return plain


class _Rows:
    """Filled from the entries, then from their batches."""

    def __init__(self, heads: Heads, data: Data, start: Ints, end: Ints) -> None:
        sizes = heads.number("num_messages_in_batch")
        counts = np.where(sizes == _ABSENT, 1, sizes)
        self._heads = heads
        self._data = data
        self._bounds = (start, end)
        self._first = np.cumsum(counts) - counts
        self._of_entry = of = np.repeat(np.arange(len(counts)), counts)
        self._index = np.where(sizes == _ABSENT, -1, 0)[of]
        self._start, self._length = start[of], (end - start)[of]
        key = heads.slices("partition_key")
        self._key = Slices(key.start[of], key.length[of])
        self._base64 = heads.number("partition_key_b64_encoded")[of] != 0
        self._event_time = heads.number("event_time")[of]
        self._null = heads.number("null_value")[of] != 0
        self._no_key = heads.number("null_partition_key")[of] != 0
        properties = heads.fields.repeated[_ENTRY["properties"]]
        plain = sizes[properties.row] == _ABSENT
        self._properties = [
            (self._first[properties.row][plain], properties.start[plain], properties.length[plain])
        ]
        self._left_out: Ints | None = None

    def add_batches(self, blob: bytes, batched: Ints) -> None:
        heads, (start, end) = self._heads, self._bounds
        sizes = heads.number("num_messages_in_batch")
        begins, follows, rows = [], [], []
        for index in batched:
            count = int(sizes[index])
            places = message_starts(blob, self._data, int(start[index]), int(end[index]), count)
            begins.append(places[:-1])
            follows.append(places[1:])
            first = int(self._first[index])
            rows.append(np.arange(first, first + count))
            self._index[first : first + count] = np.arange(count)
        self._add(np.concatenate(rows), np.concatenate(begins), np.concatenate(follows))

    def _add(self, rows: Ints, begins: Ints, follows: Ints) -> None:
        metadata = begins + _SIZE_BYTES
        content = metadata + _sizes(self._data, begins)
        fields = read_fields(
            self._data,
            metadata,
            content,
            numbers=_SINGLE_NUMBERS,
            slices=(_SINGLE["partition_key"],),
            repeated=(_SINGLE["properties"],),
        )
        size = fields.numbers[_SINGLE["payload_size"]]
        if (content + size != follows).any():
            raise NotParsed("a message does not fit its batch")
        self._start[rows], self._length[rows] = content, size
        key = fields.slices[_SINGLE["partition_key"]]
        self._key.start[rows], self._key.length[rows] = key.start, key.length
        self._base64[rows] = fields.numbers[_SINGLE["partition_key_b64_encoded"]] != 0
        self._event_time[rows] = fields.numbers[_SINGLE["event_time"]]
        self._null[rows] = fields.numbers[_SINGLE["null_value"]] != 0
        self._no_key[rows] = fields.numbers[_SINGLE["null_partition_key"]] != 0
        found = fields.repeated[_SINGLE["properties"]]
        self._properties.append((rows[found.row], found.start, found.length))
        out = fields.numbers[_SINGLE["compacted_out"]] != 0
        if out.any():
            self._left_out = rows[out]

    def slab(self) -> Slab:
        heads, of = self._heads, self._of_entry
        self._length[self._null & (self._length == 0)] = -1
        self._key.length[self._no_key] = -1
        sizes = heads.number("num_messages_in_batch")
        version = heads.slices("schema_version")
        row, start, length = (np.concatenate(c) for c in zip(*self._properties, strict=True))
        order = np.argsort(row, kind="stable")
        slab = Slab(
            self._data,
            np.array([each.ledger_id for each in heads.entries], np.int64)[of],
            np.array([each.entry_id for each in heads.entries], np.int64)[of],
            self._index,
            np.maximum(sizes, 0)[of],
            Slices(self._start, self._length),
            self._key,
            self._base64,
            heads.number("publish_time")[of],
            self._event_time,
            _pairs(self._data, Repeated(row[order], start[order], length[order])),
            Slices(version.start[of], version.length[of]),
            of,
        )
        return slab if self._left_out is None else without(slab, self._left_out)


def _pairs(data: Data, found: Repeated) -> Pairs:
    """Raises NotParsed if the bytes are not protobuf."""
    key, value = _KEY_VALUE["key"], _KEY_VALUE["value"]
    end = found.start + found.length
    fields = read_fields(data, found.start, end, numbers={}, slices=(key, value))
    for number in (key, value):  # Required fields; empty if missing.
        np.maximum(fields.slices[number].length, 0, out=fields.slices[number].length)
    return Pairs(found.row, fields.slices[key], fields.slices[value])


def without(slab: Slab, left_out: Ints) -> Slab:
    """The slab without some of its rows."""
    kept = np.ones(slab.rows, np.bool_)
    kept[left_out] = False
    return only(slab, kept)


def only(slab: Slab, kept: npt.NDArray[np.bool_]) -> Slab:
    """Some of the slab's rows."""

    def some(slices: Slices) -> Slices:
        return Slices(slices.start[kept], slices.length[kept])

    number = np.cumsum(kept) - 1
    of = slab.properties
    stays = kept[of.row]
    key, value = of.key, of.value
    return Slab(
        slab.data,
        slab.ledger[kept],
        slab.entry[kept],
        slab.batch_index[kept],
        slab.batch_size[kept],
        some(slab.value),
        some(slab.key),
        slab.key_is_base64[kept],
        slab.publish_time_ms[kept],
        slab.event_time_ms[kept],
        Pairs(
            number[of.row[stays]],
            Slices(key.start[stays], key.length[stays]),
            Slices(value.start[stays], value.length[stays]),
        ),
        some(slab.schema_version),
        slab.of_entry[kept],
    )
