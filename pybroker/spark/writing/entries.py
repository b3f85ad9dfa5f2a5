"""From rows to entries: batches of messages, encoded by columns.

A message of a batch is [size u32][SingleMessageMetadata][value]. All rows' messages are made as one
column; rows that go to the same partition are brought together, and an entry is a slice of the
column's bytes.

A message goes to the partition that its row chooses; or, with a key, to that of its hash. Others
are distributed round-robin by whole entries. With BatchingType.KeyBased an entry's messages share
their key, which the entry states, so that Key_Shared subscriptions distribute them by key.

A null value is published as null (`null_value`), and an empty key is a key. A key that is not text
is written as base64, with the flag that official clients use.
"""

import base64
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pybroker.base.errors import NotAllowed
from pybroker.client import BatchingType, CompressionType, EncodedBatch
from pybroker.client.producing.batching import compressed
from pybroker.spark.writing import byte_columns
from pybroker.spark.writing.byte_columns import Mask, Numbers, Part
from pybroker.spark.writing.routes import partitions_for_keys

MAX_ENTRY_MESSAGES: Final = 1000
MAX_ENTRY_BYTES: Final = 256 * 1024
# How many bytes of values are encoded together; that takes several times as much memory.
_MAX_SLICE_BYTES: Final = 16 * 1024 * 1024

# Tags of SingleMessageMetadata and KeyValue.
_PROPERTIES: Final = b"\x0a"
_PARTITION_KEY: Final = b"\x12"
_PAYLOAD_SIZE: Final = b"\x18"
_EVENT_TIME: Final = b"\x28"
_IS_BASE64: Final = b"\x30\x01"
_IS_NULL: Final = b"\x48\x01"
_NAME: Final = b"\x0a"
_TEXT: Final = b"\x12"

# Topic -> its partitions' names; a topic without partitions maps to itself.
Partitions = Mapping[str, Sequence[str]]


class Destined(NamedTuple):
    # Part of the DataFrame, whose order is the order of publishing.
    part: int
    topic: str
    batch: EncodedBatch


class Key(NamedTuple):
    text: str | None
    is_base64: bool = False


_NO_KEY: Final = Key(None)


class EntryEncoder:
    """Encodes the rows of one task. Columns: topic, part (int), value, key, event_time (ms),
    properties (map) and, if rows choose their partition, partition (int64, or null).
    """

    def __init__(
        self,
        partitions: Partitions,
        turn: int = 0,
        compression_type: CompressionType = CompressionType.NONE,
        batching_type: BatchingType = BatchingType.Default,
    ) -> None:
        """`turn` selects the partition where messages without a key begin."""
        self._partitions = partitions
        self._turns: dict[str, int] = defaultdict(lambda: turn)
        self._compression_type = compression_type
        self._by_key = batching_type == BatchingType.KeyBased

    def encode(self, batch: pa.RecordBatch) -> Iterator[Destined]:
        for rows in _slices(batch):
            yield from self._encode(rows)

    def _encode(self, rows: pa.RecordBatch) -> Iterator[Destined]:
        keys, are_base64 = as_texts(rows.column("key"))
        messages = encode_messages(
            rows.column("value"),
            keys,
            rows.column("event_time"),
            rows.column("properties"),
            are_base64,
        )
        topics = rows.column("topic")
        if not pa.types.is_dictionary(topics.type):
            topics = topics.dictionary_encode()
        topic_indices = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        parts = rows.column("part").to_numpy(zero_copy_only=False).astype(np.int64)
        names = topics.dictionary.to_pylist()
        targets = self._targets(names, topic_indices, keys)
        if "partition" in rows.schema.names:
            targets = self._chosen(names, topic_indices, rows.column("partition"), targets)
        together = [parts, topic_indices, targets]
        if self._by_key:
            together.append(_numbered(keys, are_base64))
        for chosen, (part, topic_index, target, *_) in _groups(together):
            column = messages if chosen is None else messages.take(pa.array(chosen))
            first = 0 if chosen is None else int(chosen[0])
            key = _key(keys, are_base64, first) if self._by_key else _NO_KEY
            for start, end in _cuts(byte_columns.offsets(column)):
                name = self._name(names[topic_index], target, part)
                yield Destined(part, name, self._entry(column, start, end, key))

    def _targets(self, names: Sequence[str], topics: Numbers, keys: pa.Array) -> Numbers:
        """Each row's partition number; -1 for a row without a key, which may go to any."""
        choices = np.array([len(self._partitions[name]) > 1 for name in names])
        targets: Numbers = np.where(choices[topics], -1, 0)
        keyed = _mask(keys.is_valid())
        for index in np.flatnonzero(choices).tolist():
            rows = np.flatnonzero(keyed & (topics == index))
            if len(rows):
                found = byte_columns.of(keys.take(pa.array(rows)))
                targets[rows] = partitions_for_keys(found, len(self._partitions[names[index]]))
        return targets

    def _chosen(
        self, names: Sequence[str], topics: Numbers, partitions: pa.Array, targets: Numbers
    ) -> Numbers:
        """`targets`, or the partition that a row names. Raises NotAllowed for one that its topic
        does not have."""
        there = _mask(partitions.is_valid())
        given = partitions.fill_null(0).to_numpy(zero_copy_only=False)
        counts = np.array([len(self._partitions[name]) for name in names])[topics]
        strange = np.flatnonzero(there & ((given < 0) | (given >= counts)))
        if len(strange):
            row = int(strange[0])
            raise NotAllowed(
                f"A row is for partition {given[row]} of {names[topics[row]]}, which has "
                f"{counts[row]}: leave its partition null, or make the topic larger"
            )
        chosen: Numbers = np.where(there, given, targets)
        return chosen

    def _name(self, topic: str, target: int, part: int) -> str:
        names = self._partitions[topic]
        if target >= 0:
            return names[target]
        self._turns[topic] += 1
        return names[(part + self._turns[topic] - 1) % len(names)]

    def _entry(self, column: pa.LargeBinaryArray, start: int, end: int, key: Key) -> EncodedBatch:
        places = byte_columns.offsets(column)
        payload = bytes(byte_columns.data(column)[places[start] : places[end]])
        batch = compressed(payload, end - start, self._compression_type)
        if key.text is None:
            return batch
        return replace(batch, partition_key=key.text, partition_key_b64_encoded=key.is_base64)


def as_texts(keys: pa.Array) -> tuple[pa.Array, Mask | None]:
    """Keys as text, and which of them are base64 (None if none are)."""
    contents = keys.cast(pa.large_binary())
    try:
        contents.cast(pa.large_string())
        return keys, None
    except pa.ArrowInvalid:
        pairs = [_as_text(each) for each in contents.to_pylist()]
    return pa.array([text for text, _ in pairs], pa.large_binary()), np.array([b for _, b in pairs])


def _as_text(key: bytes | None) -> tuple[bytes | None, bool]:
    if key is None:
        return None, False
    try:
        key.decode()
        return key, False
    except UnicodeDecodeError:
        return base64.b64encode(key), True


def encode_messages(
    values: pa.Array,
    keys: pa.Array,
    event_times: pa.Array,
    properties: pa.Array,
    keys_are_base64: Mask | None = None,
) -> pa.LargeBinaryArray:
    """Encodes each row as a message of a batch. Raises NotAllowed."""
    rows = len(values)
    contents = byte_columns.of(values)
    fields: list[Part] = [
        *_properties(properties),
        *_keys(keys),
        _PAYLOAD_SIZE,
        byte_columns.varints(byte_columns.lengths(contents, rows)),
        *_event_times(event_times),
    ]
    if keys_are_base64 is not None:
        fields.append(byte_columns.only(keys_are_base64, _IS_BASE64))
    if values.null_count:
        fields.append(byte_columns.only(_mask(values.is_null()), _IS_NULL))
    sizes = sum(byte_columns.lengths(field, rows) for field in fields)
    assert not isinstance(sizes, int)
    return byte_columns.joined([byte_columns.big_endian_u32(sizes), *fields, contents], rows)


def _keys(keys: pa.Array) -> list[Part]:
    if keys.null_count == len(keys):
        return []
    texts = byte_columns.of(keys)
    sizes = byte_columns.varints(byte_columns.lengths(texts, len(keys)))
    if not keys.null_count:
        return [_PARTITION_KEY, sizes, texts]
    there = _mask(keys.is_valid())
    return [byte_columns.only(there, _PARTITION_KEY), byte_columns.only(there, sizes), texts]


def _event_times(event_times: pa.Array) -> list[Part]:
    """In ms; null and 0 mean no event time."""
    if event_times.null_count == len(event_times):
        return []
    times = event_times.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if times.min(initial=0) < 0:
        raise NotAllowed("A row's event time is before 1970, which a message cannot have")
    there = times > 0
    if not there.any():
        return []
    encoded = byte_columns.varints(times)
    return [byte_columns.only(there, _EVENT_TIME), byte_columns.only(there, encoded)]


def _properties(properties: pa.Array) -> list[Part]:
    """A map of strings for each row; null becomes an empty map. A message has no null strings, so a
    null property is omitted: looking it up gives null again."""
    if properties.null_count == len(properties):
        return []
    ends = properties.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    if np.diff(ends)[_mask(properties.is_null())].any():  # Arrow lets a null have contents
        properties = pa.array(properties.to_pylist(), properties.type)
        ends = properties.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    keys, items = properties.keys, properties.items
    if items.null_count:
        there = items.is_valid()
        kept = there.to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(kept)])[ends]
        keys, items = keys.filter(there), items.filter(there)
    names, texts = byte_columns.of(keys), byte_columns.of(items)
    count = len(names)
    inner: list[Part] = [
        _NAME,
        byte_columns.varints(byte_columns.lengths(names, count)),
        names,
        _TEXT,
        byte_columns.varints(byte_columns.lengths(texts, count)),
        texts,
    ]
    sizes = sum(byte_columns.lengths(each, count) for each in inner)
    assert not isinstance(sizes, int)
    pairs = byte_columns.joined([_PROPERTIES, byte_columns.varints(sizes), *inner], count)
    return [byte_columns.runs(pairs, ends)]


def _mask(array: pa.Array) -> Mask:
    mask: Mask = array.to_numpy(zero_copy_only=False)
    return mask


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    if batch.nbytes <= _MAX_SLICE_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _slices(batch.slice(0, half))
    yield from _slices(batch.slice(half))


def _numbered(keys: pa.Array, are_base64: Mask | None) -> Numbers:
    """A number for each key; base64 and identical text are different keys."""
    encoded = keys.cast(pa.large_binary()).dictionary_encode()
    indices = encoded.indices.fill_null(-1)
    numbers: Numbers = indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers * 2 if are_base64 is None else numbers * 2 + are_base64


def _key(keys: pa.Array, are_base64: Mask | None, row: int) -> Key:
    content = keys[row].as_py()
    text = content.decode() if isinstance(content, bytes) else content
    return Key(text, are_base64 is not None and bool(are_base64[row]))


def _groups(columns: Sequence[Numbers]) -> Iterator[tuple[Numbers | None, list[int]]]:
    """Groups rows with equal numbers, ordered by the first column first; None: all."""
    if all(column[0] == np.min(column) == np.max(column) for column in columns):
        yield None, [int(column[0]) for column in columns]
        return
    order = np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    changes = np.any([column[1:] != column[:-1] for column in ordered], axis=0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1, [len(order)]))
    for start, end in pairwise(starts.tolist()):
        yield order[start:end], [int(column[start]) for column in ordered]


def _cuts(places: Numbers) -> Iterator[tuple[int, int]]:
    """Where entries begin and end; a message above the target size gets its own entry."""
    start, rows = 0, len(places) - 1
    while start < rows:
        fits = int(np.searchsorted(places, places[start] + MAX_ENTRY_BYTES, side="right")) - 1
        end = min(max(fits, start + 1), start + MAX_ENTRY_MESSAGES, rows)
        yield start, end
        start = end
