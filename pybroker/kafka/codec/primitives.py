"""The primitive types of Kafka's protocol: how each is read and written.

A reader takes the bytes and an offset and returns the value and the offset after it; a writer
appends to a list of parts. Lengths from the wire are compared with the bytes that are there before
anything is sized by them. Source: Kafka's protocol guide, "Protocol Primitive Types".
"""

import struct
from collections.abc import Callable
from typing import Any, Final

Parts = list[bytes]
Reader = Callable[[bytes, int], tuple[Any, int]]
Writer = Callable[[Parts, Any], None]

ZERO_UUID: Final = bytes(16)
_MAX_VARINT_BYTES: Final = 5
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

# Types of a fixed size, by their name in the table of messages: struct's format, and the zero.
FIXED: Final[dict[str, tuple[str, Any]]] = {
    "bool": ("?", False),
    "i8": ("b", 0),
    "i16": ("h", 0),
    "u16": ("H", 0),
    "i32": ("i", 0),
    "i64": ("q", 0),
    "f64": ("d", 0.0),
    "uuid": ("16s", ZERO_UUID),
}


class Malformed(Exception):
    """Bytes that are not what they claim to be; the message says where they are wrong."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits. Raises Malformed."""
    first = data[at] if at < len(data) else 0x80
    if first < 0x80:
        return first, at + 1
    number = 0
    for index, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    raise Malformed("a varint has no end")


def write_varint(parts: Parts, number: int) -> None:
    if number < 0x80:
        parts.append(number.to_bytes(1, "big"))
        return
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    parts.append(bytes(encoded))


def read_int16(data: bytes, at: int) -> tuple[int, int]:
    return _fixed(_INT16, data, at), at + 2


def read_int32(data: bytes, at: int) -> tuple[int, int]:
    return _fixed(_INT32, data, at), at + 4


def _fixed(kind: struct.Struct, data: bytes, at: int) -> int:
    try:
        number: int = kind.unpack_from(data, at)[0]
    except struct.error:
        raise Malformed("the bytes end within a number") from None
    return number


def write_int16(parts: Parts, number: int) -> None:
    parts.append(_INT16.pack(number))


def write_int32(parts: Parts, number: int) -> None:
    parts.append(_INT32.pack(number))


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """A compact length: -1 for null."""
    number, at = read_varint(data, at)
    return number - 1, at


def write_length(parts: Parts, length: int) -> None:
    write_varint(parts, length + 1)


# How a length is read and written in front of each type.
_LENGTHS: Final = {
    ("string", False): (read_int16, write_int16),
    ("bytes", False): (read_int32, write_int32),
    ("array", False): (read_int32, write_int32),
}


def lengths(kind: str, flexible: bool) -> tuple[Callable[[bytes, int], tuple[int, int]], Writer]:
    """`kind`: string, bytes or array."""
    return (read_length, write_length) if flexible else _LENGTHS[kind, False]


def checked_end(data: bytes, at: int, length: int) -> int:
    """The end of what follows. Raises Malformed."""
    end = at + length
    if length < 0 or end > len(data):
        raise Malformed(f"{length} bytes were announced, {len(data) - at} are left")
    return end


def string_reader(flexible: bool, nullable: bool) -> Reader:
    read, _ = lengths("string", flexible)

    def read_string(data: bytes, at: int) -> tuple[str | None, int]:
        length, at = read(data, at)
        if length < 0 and nullable:
            return None, at
        end = checked_end(data, at, length)
        try:
            return data[at:end].decode(), end
        except UnicodeDecodeError:
            raise Malformed("a string is not UTF-8") from None

    return read_string


def string_writer(flexible: bool, nullable: bool) -> Writer:
    _, write = lengths("string", flexible)

    def write_string(parts: Parts, value: str | None) -> None:
        if value is None and nullable:
            write(parts, -1)
            return
        encoded = (value or "").encode()
        write(parts, len(encoded))
        parts.append(encoded)

    return write_string


def bytes_reader(flexible: bool, nullable: bool) -> Reader:
    read, _ = lengths("bytes", flexible)

    def read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
        length, at = read(data, at)
        if length < 0 and nullable:
            return None, at
        end = checked_end(data, at, length)
        return data[at:end], end

    return read_bytes


def bytes_writer(flexible: bool, nullable: bool) -> Writer:
    _, write = lengths("bytes", flexible)

    def write_bytes(parts: Parts, value: bytes | None) -> None:
        if value is None and nullable:
            write(parts, -1)
            return
        write(parts, len(value or b""))
        parts.append(value or b"")

    return write_bytes
