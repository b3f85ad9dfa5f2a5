"""An entry of a Pulsar client -> a RecordBatch, with an offset for each of its messages.

    partition key           key, decoded if it is base64
    ordering key            a header, `pulsar-ordering-key`
    payload; null_value     value; null
    properties              headers (headers.py)
    event time              CreateTime; if there is none, the publish time
    ZLIB, LZ4, ZSTD, SNAPPY gzip, lz4, zstd, snappy

What only its consumer can read is one record with the payload as it is and a header that says so:
`pulsar-encrypted` has the name of the algorithm, `pulsar-unreadable` the reason.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from pybroker.kafka.conversion.headers import as_headers
from pybroker.kafka.conversion.pulsar_codecs import KAFKA_CODECS
from pybroker.kafka.records import compression
from pybroker.kafka.records.batch import build_batch
from pybroker.kafka.records.errors import UnsupportedCompression
from pybroker.kafka.records.record import Record, write_records
from pybroker.kafka.records.steps import RECORDS_A_STEP, Steps, apart
from pybroker.wire.decompression import CannotDecompress, decompressed
from pybroker.wire.message_metadata import BadEntry, split_entry
from pybroker.wire.single_messages import split_batch

ORDERING_KEY: Final = "pulsar-ordering-key"
ENCRYPTED: Final = "pulsar-encrypted"
UNREADABLE: Final = "pulsar-unreadable"
_MOST_METADATA: Final = 256 * 1024  # of a message in a batch, in bytes


def for_kafka(
    entry: bytes, first_offset: int, messages: int, leader_epoch: int = 0
) -> Steps[bytes]:
    """`messages` is the count with which the entry was published: so many offsets it has."""
    try:
        metadata, start = split_entry(entry)
    except BadEntry as error:
        raw = [_raw(entry, UNREADABLE, str(error))]
        return (yield from _batch(raw, 0, first_offset, messages, leader_epoch))
    records, base, codec = yield from _records(metadata, entry[start:], messages)
    return (yield from _batch(records, base, first_offset, messages, leader_epoch, codec))


def _batch(
    records: list[Record],
    base_timestamp: int,
    first_offset: int,
    messages: int,
    leader_epoch: int,
    codec: int = compression.NONE,
) -> Steps[bytes]:
    plain = yield from write_records(records)
    try:
        data = yield from compression.compress(codec, plain)
    except UnsupportedCompression:
        data, codec = plain, compression.NONE
    last = max((record.timestamp_delta for record in records), default=0)
    built = partial(
        build_batch,
        data,
        len(records),
        messages - 1,
        attributes=codec,
        base_offset=first_offset,
        leader_epoch=leader_epoch,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp + last,
    )
    return (yield from apart(len(data), built))


def _records(metadata: Any, payload: bytes, messages: int) -> Steps[tuple[list[Record], int, int]]:
    """The records, the time from which theirs count, and the codec of their batch."""
    base = metadata.event_time or metadata.publish_time
    if metadata.encryption_keys:
        algorithm = metadata.encryption_algo or "unnamed"
        return [_whole(metadata, payload, (ENCRYPTED, algorithm.encode()))], base, compression.NONE
    try:
        work = partial(decompressed, metadata.compression, payload, metadata.uncompressed_size)
        plain = yield from apart(metadata.uncompressed_size, work)
        if not metadata.HasField("num_messages_in_batch"):
            records = [_whole(metadata, plain)]
        else:
            records = yield from _of_batch(metadata, plain, messages, base)
    except (CannotDecompress, BadEntry) as error:
        why = (UNREADABLE, str(error).encode())
        return [_whole(metadata, payload, why)], base, compression.NONE
    return records, base, KAFKA_CODECS.get(metadata.compression, compression.NONE)


def _of_batch(metadata: Any, plain: bytes, messages: int, base: int) -> Steps[list[Record]]:
    """Removed messages (a compaction's) leave their offsets empty."""
    if metadata.num_messages_in_batch != messages:
        raise BadEntry(
            f"A batch of {metadata.num_messages_in_batch} was published as {messages} messages"
        )
    found = []
    for at, (single, value) in enumerate(split_batch(plain, messages, _MOST_METADATA)):
        if not single.compacted_out:
            time = (single.event_time or metadata.publish_time) - base
            found.append(_record(single, value, at, time))
        if not (at + 1) % RECORDS_A_STEP:
            yield None
    return found


def _whole(metadata: Any, payload: bytes, *more: tuple[str, bytes]) -> Record:
    record = _record(metadata, payload, 0, 0)
    return record._replace(headers=[*record.headers, *more]) if more else record


def _record(message: Any, value: bytes, offset_delta: int, timestamp_delta: int) -> Record:
    headers = list(as_headers(_pairs(message.properties)))
    if message.HasField("ordering_key"):
        headers.append((ORDERING_KEY, message.ordering_key))
    return Record(
        offset_delta,
        timestamp_delta,
        _key(message),
        None if message.null_value else value,
        headers,
    )


def _pairs(properties: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Protobuf returns a string that is not UTF-8 as bytes."""
    for pair in properties:
        yield _text(pair.key), _text(pair.value)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _key(message: Any) -> bytes | None:
    if not message.HasField("partition_key"):
        return None
    found: str | bytes = message.partition_key
    key = found.encode() if isinstance(found, str) else found
    if not message.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key


def _raw(payload: bytes, name: str, why: str) -> Record:
    return Record(0, 0, None, payload, [(name, why.encode())])
