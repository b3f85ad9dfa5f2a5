"""The metadata of a ledger as BookKeeper stores it in ZooKeeper, format 3.

A line of text with the format, the length of the message as a varint, and a LedgerMetadataFormat
message in Protocol Buffers. Unknown fields are kept.

Source: DataFormats.proto; org.apache.bookkeeper.meta.LedgerMetadataSerDe.
"""

import dataclasses
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.errors import BadLedgerMetadata
from managed_ledger.storage.bookkeeper.formats.protobuf import VARINT, fields, put_bytes, put_int
from managed_ledger.storage.bookkeeper.quorums import Quorums

_PREAMBLE: Final = b"BookieMetadataFormatVersion\t3\n"
_WHAT: Final = "the metadata of a ledger"
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
    """`bookies` hold the entries from `first_entry_id` up to the next segment."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """`last_entry_id` and `length` are valid only in the state CLOSED."""

    quorums: Quorums
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length: int = 0
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = dataclasses.field(default=b"", repr=False)
    created_ms: int = -1
    custom: tuple[tuple[str, bytes], ...] = ()
    unknown: bytes = b""  # unknown fields, unchanged

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
        """A copy in which `bookies` hold the entries from `first_entry_id` on."""
        kept = [each for each in self.segments if each.first_entry_id < first_entry_id]
        return replace(self, segments=(*kept, Segment(first_entry_id, bookies)))

    def with_more(self, bookies: tuple[str, ...]) -> "LedgerMetadata":
        """The metadata with these bookies in each ensemble, too. For a ledger that is not
        striped.
        """
        old, copies = self.quorums, len(bookies)
        return replace(
            self,
            quorums=Quorums(old.ensemble + copies, old.write + copies, old.ack),
            segments=tuple(
                Segment(each.first_entry_id, each.bookies + bookies) for each in self.segments
            ),
        )

    def closed(self, last_entry_id: int, length: int) -> "LedgerMetadata":
        state = LedgerState.CLOSED
        return replace(self, state=state, last_entry_id=last_entry_id, length=length)

    def is_still(self, before: "LedgerMetadata") -> bool:
        """Whether the writer with metadata `before` still owns the ledger: other clients have
        changed only segments that were complete.
        """
        return (
            self.state is before.state
            and self.created_ms == before.created_ms
            and self.segments[-1] == before.segments[-1]
        )


def encode(metadata: LedgerMetadata) -> bytes:
    out = Writer()
    put_int(out, 1, metadata.quorums.write)
    put_int(out, 2, metadata.quorums.ensemble)
    put_int(out, 3, metadata.length)
    put_int(out, 4, metadata.last_entry_id)
    put_int(out, 5, metadata.state)
    for segment in metadata.segments:
        inner = Writer()
        for bookie in segment.bookies:
            put_bytes(inner, 1, bookie.encode())
        put_int(inner, 2, segment.first_entry_id)
        put_bytes(out, 6, inner.getvalue())
    put_int(out, 7, metadata.digest_type)
    put_bytes(out, 8, metadata.password)
    put_int(out, 9, metadata.quorums.ack)
    if metadata.created_ms >= 0:
        put_int(out, 10, metadata.created_ms)
    for key, value in metadata.custom:
        inner = Writer()
        put_bytes(inner, 1, key.encode())
        put_bytes(inner, 2, value)
        put_bytes(out, 11, inner.getvalue())
    out.raw(metadata.unknown)
    whole = Writer()
    whole.raw(_PREAMBLE)
    whole.blob(out.getvalue())
    return whole.getvalue()


def decode(value: bytes) -> LedgerMetadata:
    """Raises BadLedgerMetadata for another format than 3, and for bytes that do not parse."""
    if not value.startswith(_PREAMBLE):
        raise BadLedgerMetadata(
            f"the ledger's metadata begins with {value[:40]!r}, not with format 3: only format 3 "
            "of Apache BookKeeper 4.9 and newer is read"
        )
    try:
        return _decode(Reader(value[len(_PREAMBLE) :], _WHAT))
    except (CorruptStorage, ValueError, KeyError) as mistake:
        raise BadLedgerMetadata(f"the ledger's metadata cannot be decoded: {mistake}") from mistake


def _decode(reader: Reader) -> LedgerMetadata:
    numbers: dict[int, int] = {}
    segments: list[Segment] = []
    custom: list[tuple[str, bytes]] = []
    password = unknown = b""
    for field in fields(reader.blob(), _WHAT):
        if field.number in (1, 2, 3, 4, 5, 7, 9, 10) and field.wire == VARINT:
            numbers[field.number] = field.value
        elif field.number == 6:
            segments.append(_segment(field.blob))
        elif field.number == 8:
            password = field.blob
        elif field.number == 11:
            parts = {inner.number: inner.blob for inner in fields(field.blob, _WHAT)}
            custom.append((parts.get(1, b"").decode(), parts.get(2, b"")))
        else:
            unknown += field.raw
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
        unknown=unknown,
    )


def _segment(value: bytes) -> Segment:
    bookies, first_entry_id = [], 0
    for field in fields(value, _WHAT):
        if field.number == 1:
            bookies.append(field.blob.decode())
        elif field.number == 2:
            first_entry_id = field.value
    return Segment(first_entry_id, tuple(bookies))
