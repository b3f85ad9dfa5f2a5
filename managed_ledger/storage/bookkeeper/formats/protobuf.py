"""Protocol Buffers as far as stored metadata needs them, without generated code."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from managed_ledger.codec import Writer
from managed_ledger.errors import CorruptStorage

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}  # bytes, by wire type
_MAX_VARINT_BYTES: Final = 10
_SIXTY_FOUR_BITS: Final = (1 << 64) - 1


class Field(NamedTuple):
    """`value` is set for a VARINT, as an int64; `blob` for BYTES; `raw` is the whole field."""

    number: int
    wire: int
    value: int
    blob: bytes
    raw: bytes


def fields(message: bytes, what: str) -> Iterator[Field]:
    """The fields, in order. Raises CorruptStorage, which names `what`."""
    at = 0
    while at < len(message):
        start, value, blob = at, 0, b""
        tag, at = _varint(message, at, what)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            unsigned, at = _varint(message, at, what)
            value = signed(unsigned)
        elif wire == BYTES:
            size, at = _varint(message, at, what)
            blob = message[at : at + size]
            at += size
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise CorruptStorage(f"{what}: field {number} has wire type {wire}")
        if at > len(message):
            raise CorruptStorage(f"{what} ends within field {number}")
        yield Field(number, wire, value, blob, message[start:at])


def numbers(field: Field, what: str) -> list[int]:
    """The values that this field adds to a repeated int64, packed or not."""
    if field.wire == VARINT:
        return [field.value]
    found, at = [], 0
    while at < len(field.blob):
        value, at = _varint(field.blob, at, what)
        found.append(signed(value))
    return found


def put_int(out: Writer, number: int, value: int) -> None:
    out.number(number << 3 | VARINT)
    out.number(value & _SIXTY_FOUR_BITS)


def put_bytes(out: Writer, number: int, value: bytes) -> None:
    out.number(number << 3 | BYTES)
    out.blob(value)


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _SIXTY_FOUR_BITS
    return value - (1 << 64) if value >> 63 else value


def _varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    """The value, and the offset after it."""
    value = 0
    for number, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, at + number + 1
    raise CorruptStorage(f"{what} has a number without an end at byte {at}")
