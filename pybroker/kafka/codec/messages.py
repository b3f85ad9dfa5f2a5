"""Whole requests and responses: headers and bodies.

A request's header has version 2 where its body is flexible, otherwise 1; a response's has version 1
or 0. The response to ApiVersions always has version 0: a client must be able to read it before it
knows what the broker speaks. Source: KIP-482, KIP-511.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pybroker.kafka.codec.message_table import MessageKind, message_kinds
from pybroker.kafka.codec.primitives import (
    Malformed,
    Parts,
    checked_end,
    read_varint,
    string_reader,
    string_writer,
)
from pybroker.kafka.codec.structs import Body, Steps, Struct, check_tags

API_VERSIONS: Final = 18
_JOINED_PARTS: Final = 5000  # in one step
HEADER_BYTES: Final = 8  # of what every header begins with
_HEADER: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")
_read_client_id: Final = string_reader(flexible=False, nullable=True)
_write_client_id: Final = string_writer(flexible=False, nullable=True)


@dataclass(frozen=True, slots=True)
class Header:
    key: int
    version: int
    correlation_id: int
    client_id: str | None


def key_and_version(data: bytes | bytearray, at: int = 0) -> tuple[int, int, int]:
    """The API key, its version and the correlation id, in the first HEADER_BYTES."""
    key, version, correlation_id = _HEADER.unpack_from(data, at)
    return key, version, correlation_id


def read_header(data: bytes, flexible: bool) -> tuple[Header, int]:
    """The header, and where the body begins. Raises Malformed."""
    checked_end(data, 0, HEADER_BYTES)
    key, version, correlation_id = key_and_version(data)
    client_id, at = _read_client_id(data, HEADER_BYTES)
    return Header(key, version, correlation_id, client_id), _skip_tags(data, at) if flexible else at


def _skip_tags(data: bytes, at: int) -> int:
    count, at = read_varint(data, at)
    check_tags(count)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at = checked_end(data, at, size)
    return at


def response_header(key: int, version: int, correlation_id: int) -> bytes:
    flexible = key != API_VERSIONS and message_kinds()[key].is_flexible(version)
    return _CORRELATION.pack(correlation_id) + (b"\x00" if flexible else b"")


@cache
def request_struct(key: int, version: int) -> Struct:
    """Raises KeyError for an unknown key or version."""
    kind = _kind(key, version)
    return Struct(kind.request, version, kind.is_flexible(version))


@cache
def response_struct(key: int, version: int) -> Struct:
    kind = _kind(key, version)
    return Struct(kind.response, version, kind.is_flexible(version))


def _kind(key: int, version: int) -> MessageKind:
    kind = message_kinds()[key]
    if version not in kind.versions:
        raise KeyError(f"{kind.name} has no version {version}")
    return kind


def decode_request(key: int, version: int, data: bytes, at: int) -> Body:
    """Ignores what follows, as Kafka does: librdkafka appends three bytes to Metadata. Raises
    Malformed.
    """
    body, _ = request_struct(key, version).read(data, at)
    return body


def decode_request_in_steps(key: int, version: int, data: bytes, at: int) -> Steps[Body]:
    """As `decode_request`; yields after each element of an array."""
    body, _ = yield from request_struct(key, version).read_in_steps(data, at)
    return body


def encode_response_in_steps(key: int, version: int, body: Mapping[str, Any]) -> Steps[bytes]:
    """As `encode_response`; yields after each element of an array."""
    parts: Parts = []
    joined: list[bytes] = []
    for _ in response_struct(key, version).write_in_steps(parts, body):
        if len(parts) > _JOINED_PARTS:
            joined.append(b"".join(parts))
            parts.clear()
        yield
    return b"".join((*joined, *parts))


def encode_response(key: int, version: int, body: Mapping[str, Any]) -> bytes:
    parts: Parts = []
    response_struct(key, version).write(parts, body)
    return b"".join(parts)


def encode_request(header: Header, body: Mapping[str, Any]) -> bytes:
    """A whole request, without the size in front of it; for tests and tools."""
    parts: Parts = [_HEADER.pack(header.key, header.version, header.correlation_id)]
    _write_client_id(parts, header.client_id)
    if message_kinds()[header.key].is_flexible(header.version):
        parts.append(b"\x00")
    request_struct(header.key, header.version).write(parts, body)
    return b"".join(parts)


def decode_response(key: int, version: int, data: bytes) -> tuple[int, Body]:
    """The correlation id and the body of a whole response. Raises Malformed."""
    at = len(response_header(key, version, 0))
    checked_end(data, 0, at)
    body, end = response_struct(key, version).read(data, at)
    if end != len(data):
        raise Malformed(f"{len(data) - end} bytes follow the message")
    return _CORRELATION.unpack_from(data)[0], body
