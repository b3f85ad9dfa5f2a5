"""Produce by hand, for the usual case; whatever is unusual goes through the table's interpreter.

Usual is: few topics and partitions, names of less than 127 bytes, no tags, no errors.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.codec import messages
from pybroker.kafka.codec.primitives import ZERO_UUID

_FLEXIBLE: Final = 9
_IDS: Final = 13  # topics by their ids
_HEAD: Final = struct.Struct(">hi")  # acks, timeout
_PARTITION: Final = struct.Struct(">ii")  # index, size of the records
_INDEX: Final = struct.Struct(">i")
_RESPONSE: Final = struct.Struct(">ihqqq")  # index, error, base offset, append time, log start
_NOTHING_MORE: Final = b"\x01\x00\x00"  # no record errors, no message, no tags
_END: Final = b"\x00\x00\x00\x00\x00"  # no throttling, no tags
_MOST: Final = 2000  # partitions
_SMALL: Final = 0x80  # of a varint of one byte
_UNUSUAL: Final = ("error_message", "record_errors", "current_leader")


def decode_request(key: int, version: int, data: bytes, at: int) -> dict[str, Any]:
    """As `messages.decode_request`."""
    body = decode_usual(version, data, at)
    return messages.decode_request(key, version, data, at) if body is None else body


def decode_usual(version: int, data: bytes, at: int) -> dict[str, Any] | None:
    """None if something is unusual, or if there is more than can be read in one turn."""
    if version < _FLEXIBLE:
        return None
    try:
        return _decoded(version, data, at)
    except (IndexError, struct.error, UnicodeDecodeError):
        return None


def _decoded(version: int, data: bytes, at: int) -> dict[str, Any] | None:
    """None: something is unusual."""
    transactional_id = None
    if size := data[at]:
        if size >= _SMALL:
            return None
        transactional_id = data[at + 1 : at + size].decode()
        at += size - 1
    acks, timeout_ms = _HEAD.unpack_from(data, at + 1)
    topics: list[dict[str, Any]] = []
    count, at = data[at + 7], at + 8
    if not 0 < count < _SMALL:
        return None
    partitions = 0
    for _ in range(count - 1):
        end = _topic(version, data, at, topics)
        if end is None:
            return None
        at = end
        partitions += len(topics[-1]["partition_data"])
        if partitions > _MOST:
            return None
    if data[at]:
        return None
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": topics,
    }


def _topic(version: int, data: bytes, at: int, topics: list[dict[str, Any]]) -> int | None:
    """The end of a topic, which is added to `topics`."""
    name, topic_id, partitions = "", ZERO_UUID, []
    if version >= _IDS:
        end = at + len(ZERO_UUID)
        topic_id = data[at:end]
    else:
        size = data[at]
        end = at + size
        if not 0 < size < _SMALL:
            return None
        name = data[at + 1 : end].decode()
    count = data[end]
    if not 0 < count < _SMALL:
        return None
    at = end + 1
    for _ in range(count - 1):
        (index,) = _INDEX.unpack_from(data, at)
        size, shift, at = 0, 0, at + 4
        while (byte := data[at]) >= _SMALL and shift < 28:
            size |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
        size |= byte << shift
        start, at = at + 1, at + size
        if not size or byte >= _SMALL or data[at]:
            return None
        partitions.append({"index": index, "records": data[start:at]})
        at += 1
    topics.append({"name": name, "topic_id": topic_id, "partition_data": partitions})
    return None if data[at] else at + 1


def encode_response(key: int, version: int, body: Mapping[str, Any]) -> bytes:
    """As `messages.encode_response`."""
    topics = body["responses"]
    if version >= _FLEXIBLE and len(topics) < _SMALL - 1:
        parts = [bytes((len(topics) + 1,))]
        if all(_encode_topic(version, topic, parts) for topic in topics):
            parts.append(_END)
            return b"".join(parts)
    return messages.encode_response(key, version, body)


def _encode_topic(version: int, topic: Mapping[str, Any], parts: list[bytes]) -> bool:
    """False: something is unusual."""
    name, partitions = topic["name"].encode(), topic["partition_responses"]
    if len(name) >= _SMALL - 1 or len(partitions) >= _SMALL - 1:
        return False
    if version >= _IDS:
        parts.append(topic.get("topic_id", ZERO_UUID))
    else:
        parts.append(b"%c%b" % (len(name) + 1, name))
    parts.append(bytes((len(partitions) + 1,)))
    for each in partitions:
        if any(name in each for name in _UNUSUAL):
            return False
        parts.append(
            _RESPONSE.pack(
                each["index"],
                each["error_code"],
                each["base_offset"],
                each["log_append_time_ms"],
                each["log_start_offset"],
            )
        )
        parts.append(_NOTHING_MORE)
    parts.append(b"\x00")
    return True
