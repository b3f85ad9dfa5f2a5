"""A stored RecordBatch -> an entry for Pulsar's clients: a batch of as many messages.

    key                     partition key; base64 if it is not UTF-8
    value; null             payload; null_value
    headers                 properties (headers.py)
    CreateTime              event time. LogAppendTime is the publish time alone
    gzip, snappy, lz4, zstd ZLIB, SNAPPY, LZ4, ZSTD

If all records have one key, the batch has it too, for Key_Shared.
"""

import base64
from functools import partial
from typing import Any

from pybroker.kafka.conversion.entries import batch_start
from pybroker.kafka.conversion.headers import as_properties
from pybroker.kafka.conversion.pulsar_codecs import PULSAR_CODECS, packed
from pybroker.kafka.records.batch import (
    CODEC,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    header_of,
)
from pybroker.kafka.records.compression import decompress
from pybroker.kafka.records.errors import BadRecords
from pybroker.kafka.records.record import Record, read_records
from pybroker.kafka.records.steps import LARGE_BYTES, RECORDS_A_STEP, Steps, apart
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import BadEntry, build_entry, split_entry


def for_pulsar(entry: bytes) -> Steps[bytes]:
    """The entry as Pulsar's clients read it. Other entries, and those that cannot be read, stay as
    they are; broker entry metadata stays in front.
    """
    start = batch_start(entry)
    if not start:
        return entry
    metadata: Any
    try:
        metadata, _ = split_entry(entry)
        header = header_of(entry[start : start + HEADER_BYTES])
        data = entry[start + HEADER_BYTES :]
        plain = yield from decompress(header.attributes & CODEC, data)
        payload, key = yield from _payload(header, plain)
        _describe(metadata, key)
        codec = PULSAR_CODECS[header.attributes & CODEC]
        data, metadata.compression = yield from packed(codec, payload)
        metadata.uncompressed_size = len(payload)
        stamp = _stamp_of(entry)
        return (yield from apart(len(data), lambda: stamp + build_entry(metadata, data)))
    except (BadRecords, BadEntry):
        return entry


def _stamp_of(entry: bytes) -> bytes:
    """The broker entry metadata in front of the entry, if any."""
    if not entry.startswith(b"\x0e\x02"):
        return b""
    return entry[: 6 + int.from_bytes(entry[2:6], "big")]


def _payload(header: BatchHeader, plain: bytes) -> Steps[tuple[bytes, bytes | None]]:
    """The messages, not compressed, and the key that all of them have, if they do."""
    timed = not header.attributes & LOG_APPEND_TIME and header.base_timestamp >= 0
    base = header.base_timestamp if timed else None
    parts, payload = list[bytes | bytearray](), bytearray()
    key, is_first = None, True
    for at, record in enumerate(read_records(plain, header.record_count), 1):
        payload += _head(record, base)
        value = record.value or b""
        if len(value) > LARGE_BYTES:  # to be copied only once
            parts += (payload, value)
            payload = bytearray()
        else:
            payload += value
        key = record.key if is_first or record.key == key else None
        is_first = False
        if not at % RECORDS_A_STEP:
            yield None
    parts.append(payload)
    whole = yield from apart(sum(map(len, parts)), partial(b"".join, parts))
    return whole, key


def _describe(metadata: Any, key: bytes | None) -> None:
    del metadata.properties[:]  # the only one is that of the format
    if key is not None:
        _set_key(metadata, key)


def _head(record: Record, base_timestamp: int | None) -> bytes:
    """What precedes the value of a message in a batch."""
    value = record.value
    single = pb.SingleMessageMetadata(payload_size=0 if value is None else len(value))
    if record.headers:
        single.properties.extend(
            pb.KeyValue(key=name, value=text) for name, text in as_properties(record.headers)
        )
    if record.key is not None:
        _set_key(single, record.key)
    if value is None:
        single.null_value = True
    if base_timestamp is not None and (time := base_timestamp + record.timestamp_delta) >= 0:
        single.event_time = time
    encoded = single.SerializeToString()
    return len(encoded).to_bytes(4, "big") + encoded


def _set_key(message: Any, key: bytes) -> None:
    try:
        message.partition_key = key.decode()
    except UnicodeDecodeError:
        message.partition_key = base64.b64encode(key).decode()
        message.partition_key_b64_encoded = True
