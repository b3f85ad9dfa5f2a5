"""Fetch by hand, for the usual case; whatever is unusual goes through the table's interpreter.

Usual is: from version 12 on, names of less than 127 bytes, no tags, and a response without an error
of its own.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.codec import messages
from pybroker.kafka.codec.primitives import ZERO_UUID, Malformed, Parts, read_varint, write_varint

_FIRST: Final = 12
_IDS: Final = 13  # topics by their ids
_NO_REPLICA: Final = 15  # the replica is in a tag, which consumers do not send
_REPLICA: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">iiibii")
_HEAD_NAMES: Final = (
    "max_wait_ms",
    "min_bytes",
    "max_bytes",
    "isolation_level",
    "session_id",
    "session_epoch",
)
_ASKED: Final = struct.Struct(">iiqiqiB")  # with the count of tags
_NO_TAGS: Final = b"\x00"
_NO_ERROR: Final = bytes(10)  # throttling, error, session
_PARTITION: Final = struct.Struct(">ihqqqBi")
_LAST_OFFSET: Final = 2**63 - 1
_MOST_BYTES: Final = 128 * 1024  # some thousand partitions


def decode_request(key: int, version: int, data: bytes, at: int) -> dict[str, Any]:
    """As `messages.decode_request`."""
    body = decode_usual(version, data, at)
    return messages.decode_request(key, version, data, at) if body is None else body


def decode_usual(version: int, data: bytes, at: int) -> dict[str, Any] | None:
    """None if something is unusual, or if there is more than can be read in one turn."""
    if version < _FIRST or len(data) > _MOST_BYTES:
        return None
    try:
        return _decoded(version, data, at)
    except (IndexError, struct.error, Malformed, UnicodeDecodeError):
        return None


def _decoded(version: int, data: bytes, at: int) -> dict[str, Any] | None:
    """None: something is unusual."""
    body: dict[str, Any] = {"replica_id": -1}
    if version < _NO_REPLICA:
        (body["replica_id"],) = _REPLICA.unpack_from(data, at)
        at += _REPLICA.size
    body |= zip(_HEAD_NAMES, _HEAD.unpack_from(data, at), strict=True)
    topics: list[dict[str, Any]] = []
    count, at = read_varint(data, at + _HEAD.size)
    for _ in range(count - 1):
        end = _topic(version, data, at, topics)
        if end is None:
            return None
        at = end
    forgotten, rack_size = data[at], data[at + 1]
    rack_end = at + 1 + rack_size
    if forgotten != 1 or not 0 < rack_size < 0x80 or data[rack_end] or not count:
        return None
    body["topics"], body["forgotten_topics_data"] = topics, []
    body["rack_id"] = data[at + 2 : rack_end].decode()
    body["cluster_id"] = body["replica_state"] = None
    return body


def _topic(version: int, data: bytes, at: int, topics: list[dict[str, Any]]) -> int | None:
    """The end of a topic, which is added to `topics`."""
    topic: dict[str, Any] = {"topic": "", "topic_id": ZERO_UUID, "partitions": []}
    if version >= _IDS:
        end = at + len(ZERO_UUID)
        topic["topic_id"] = data[at:end]
    else:
        size = data[at]
        end = at + size
        if not 0 < size < 0x80:
            return None
        topic["topic"] = data[at + 1 : end].decode()
    partitions = topic["partitions"]
    count, at = read_varint(data, end)
    if not count:
        return None
    for _ in range(count - 1):
        index, epoch, offset, last_epoch, start, most_bytes, tags = _ASKED.unpack_from(data, at)
        if tags:
            return None
        partitions.append(
            {
                "partition": index,
                "current_leader_epoch": epoch,
                "fetch_offset": offset,
                "last_fetched_epoch": last_epoch,
                "log_start_offset": start,
                "partition_max_bytes": most_bytes,
                "replica_directory_id": ZERO_UUID,
                "high_watermark": _LAST_OFFSET,
            }
        )
        at += _ASKED.size
    topics.append(topic)
    return None if data[at] else at + 1


def encode_response(key: int, version: int, body: Mapping[str, Any]) -> bytes:
    """As `messages.encode_response`."""
    if version < _FIRST or len(body) != 1:
        return messages.encode_response(key, version, body)
    parts: Parts = [_NO_ERROR]
    write_varint(parts, len(body["responses"]) + 1)
    for topic in body["responses"]:
        if version >= _IDS:
            parts.append(topic.get("topic_id", ZERO_UUID))
        else:
            name = topic["topic"].encode()
            write_varint(parts, len(name) + 1)
            parts.append(name)
        write_varint(parts, len(topic["partitions"]) + 1)
        for partition in topic["partitions"]:
            _encode_partition(partition, parts)
        parts.append(_NO_TAGS)
    parts.append(_NO_TAGS)
    return b"".join(parts)


def _encode_partition(partition: Mapping[str, Any], parts: Parts) -> None:
    records = partition["records"]
    parts.append(
        _PARTITION.pack(
            partition["partition_index"],
            partition["error_code"],
            partition["high_watermark"],
            partition["last_stable_offset"],
            partition["log_start_offset"],
            0 if partition["aborted_transactions"] is None else 1,
            -1,
        )
    )
    write_varint(parts, len(records) + 1)
    parts.append(records)
    parts.append(_NO_TAGS)
