"""The metadata of a ledger as BookKeeper stores it in ZooKeeper, format 3.

A line of text with the format, the length of the message as a varint, and the message
LedgerMetadataFormat in Protocol Buffers. Fields that this version does not know are kept.

Source: DataFormats.proto; org.apache.bookkeeper.meta.LedgerMetadataSerDe.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.errors import BadLedgerMetadata
from managed_ledger.storage.bookkeeper.quorums import Quorums

_PREAMBLE: Final = b"BookieMetadataFormatVersion\t3\n"
_VARINT: Final = 0
_BYTES: Final = 2
_SIXTY_FOUR_BITS: Final = (1 << 64) - 1
NO_ENTRY: Final = -1


class LedgerState(IntEnum):
    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(IntEnum):
    CRC32 = 1
    HMAC = 2
    CRC32C = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """From entry `first_entry_id` on, until the next segment, `bookies` hold the entries."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """`last_entry_id` and `length` count only when it is CLOSED."""

    quorums: Quorums
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""
    created_ms: int = -1
    custom: tuple[tuple[str, bytes], ...] = ()
    unknown: bytes = b""  # fields of a later version, as they were

    def segment_of(self, entry_id: int) -> Segment:
        found = self.segments[0]
        for segment in self.segments:
            if segment.first_entry_id > entry_id:
                break
            found = segment
        return found

    def segment_end(self, entry_id: int) -> int | None:
        """The last entry of the entry's segment; None for the last segment."""
        for segment in self.segments:
            if segment.first_entry_id > entry_id:
                return segment.first_entry_id - 1
        return None

    def with_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> "LedgerMetadata":
        """From `first_entry_id` on others hold the entries."""
        kept = [each for each in self.segments if each.first_entry_id < first_entry_id]
        return replace(self, segments=(*kept, Segment(first_entry_id, bookies)))


def encode(metadata: LedgerMetadata) -> bytes:
    out = Writer()
    _int(out, 1, metadata.quorums.write)
    _int(out, 2, metadata.quorums.ensemble)
    _int(out, 3, metadata.length)
    _int(out, 4, metadata.last_entry_id)
    _int(out, 5, metadata.state)
    for segment in metadata.segments:
        inner = Writer()
        for bookie in segment.bookies:
            _blob(inner, 1, bookie.encode())
        _int(inner, 2, segment.first_entry_id)
        _blob(out, 6, inner.getvalue())
    _int(out, 7, metadata.digest_type)
    _blob(out, 8, metadata.password)
    _int(out, 9, metadata.quorums.ack)
    if metadata.created_ms >= 0:
        _int(out, 10, metadata.created_ms)
    for key, value in metadata.custom:
        inner = Writer()
        _blob(inner, 1, key.encode())
        _blob(inner, 2, value)
        _blob(out, 11, inner.getvalue())
    out.raw(metadata.unknown)
    whole = Writer()
    whole.raw(_PREAMBLE)
    whole.blob(out.getvalue())
    return whole.getvalue()


def decode(value: bytes) -> LedgerMetadata:
    """Raises BadLedgerMetadata."""
    if not value.startswith(_PREAMBLE):
        raise BadLedgerMetadata(
            f"the ledger's metadata begins with {value[:40]!r}, not with format 3: only format 3 "
            "of Apache BookKeeper 4.9 and newer is read"
        )
    try:
        return _decode(Reader(value[len(_PREAMBLE) :], "the metadata of a ledger"))
    except (CorruptStorage, ValueError, KeyError) as mistake:
        raise BadLedgerMetadata(f"the ledger's metadata cannot be decoded: {mistake}") from mistake


def _decode(reader: Reader) -> LedgerMetadata:
    numbers: dict[int, int] = {}
    segments: list[Segment] = []
    custom: list[tuple[str, bytes]] = []
    password, unknown = b"", Writer()
    for field, wire, number, blob in _fields(reader.blob()):
        if field in (1, 2, 3, 4, 5, 7, 9, 10) and wire == _VARINT:
            numbers[field] = number
        elif field == 6:
            segments.append(_segment(blob))
        elif field == 8:
            password = blob
        elif field == 11:
            parts = {inner: value for inner, _, _, value in _fields(blob)}
            custom.append((parts.get(1, b"").decode(), parts.get(2, b"")))
        elif wire == _VARINT:
            _int(unknown, field, number)
        else:
            _blob(unknown, field, blob)
    if not segments:
        raise ValueError("it names no bookies")
    quorums = Quorums(numbers[2], numbers[1], numbers.get(9, numbers[1]))
    if any(len(segment.bookies) != quorums.ensemble for segment in segments):
        raise ValueError("a segment has another number of bookies than the ensemble")
    return LedgerMetadata(
        quorums=quorums,
        segments=tuple(sorted(segments, key=lambda segment: segment.first_entry_id)),
        state=LedgerState(numbers[5]),
        last_entry_id=numbers.get(4, NO_ENTRY),
        length=numbers[3],
        digest_type=DigestType(numbers.get(7, DigestType.CRC32)),
        password=password,
        created_ms=numbers.get(10, -1),
        custom=tuple(custom),
        unknown=unknown.getvalue(),
    )


def _segment(value: bytes) -> Segment:
    bookies, first_entry_id = [], 0
    for field, _, number, blob in _fields(value):
        if field == 1:
            bookies.append(blob.decode())
        elif field == 2:
            first_entry_id = number
    return Segment(first_entry_id, tuple(bookies))


def _fields(message: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Field, wire type, and the number or the bytes."""
    reader = Reader(message, "the metadata of a ledger")
    while not reader.at_end:
        tag = reader.number()
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            number = reader.number() & _SIXTY_FOUR_BITS
            yield field, wire, number - (1 << 64) if number >> 63 else number, b""
        elif wire == _BYTES:
            yield field, wire, 0, reader.blob()
        else:
            raise ValueError(f"field {field} has wire type {wire}")


def _int(out: Writer, field: int, number: int) -> None:
    out.number(field << 3 | _VARINT)
    out.number(number & _SIXTY_FOUR_BITS)


def _blob(out: Writer, field: int, value: bytes) -> None:
    out.number(field << 3 | _BYTES)
    out.blob(value)
