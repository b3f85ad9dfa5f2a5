"""The bytes of the journal: one frame per group commit.

Frame = header | body | end byte. The header contains the journal file's number (generation) and the
offset, so that left-over bytes are never mistaken for a frame, and how far the file was synced when
the frame was written, so that corruption of an earlier frame can be told from a write lost in a
crash. It also counts the disk sectors of body and end that contain only zeros: a sector that never
reached the disk reads as zeros, too, and only the count distinguishes the two. The end byte keeps
the last sector from being all zeros. Body = records, each beginning with its kind. Numbers are
little-endian.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from managed_ledger.checksum import crc32c
from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.operations import Append, DeleteLedger, Operation, Put, Remove

assert sys.byteorder == "little", "arrays are written in memory order"

MAGIC: Final = b"PBJ1"
END: Final = b"\xa5"
SECTOR: Final = 512
ZERO_SECTOR: Final = bytes(SECTOR)
LARGE_BYTES: Final = 8 * 1024  # entries of this size or more are cheaper to write uncopied

HEADER: Final = Struct("<4sIQQIII")  # magic, generation, offset, synced to, body, zeros, body crc
CRC: Final = Struct("<I")
HEADER_BYTES: Final = HEADER.size + CRC.size

KIND_ENTRIES, KIND_PUT, KIND_REMOVE, KIND_CREATE_LEDGER, KIND_DELETE_LEDGER = range(1, 6)
KIND_TAGGED_ENTRIES: Final = 6
ENTRIES: Final = Struct("<BQQI")  # kind, ledger id, first entry id, count; then two u32 columns
TAG: Final = Struct("<H")  # size of the tag, after ENTRIES; then the tag and the columns
PUT: Final = Struct("<BQII")  # kind, version, key and value bytes
REMOVE: Final = Struct("<BI")  # kind, key bytes
LEDGER: Final = Struct("<BQ")  # kind, ledger id


@dataclass(frozen=True, slots=True)
class FrameHeader:
    generation: int
    offset: int
    synced_to: int
    body_bytes: int
    zero_sectors: int
    body_crc: int

    @property
    def body_start(self) -> int:
        return self.offset + HEADER_BYTES

    @property
    def end(self) -> int:
        return self.body_start + self.body_bytes + len(END)


@dataclass(frozen=True, slots=True)
class EntriesRecord:
    ledger_id: int
    first_entry_id: int
    entries: list[bytes]
    message_counts: "array[int]"
    tag: bytes


@dataclass(frozen=True, slots=True)
class PutRecord:
    key: str
    stored: Versioned


@dataclass(frozen=True, slots=True)
class RemoveRecord:
    key: str


@dataclass(frozen=True, slots=True)
class CreateLedgerRecord:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class DeleteLedgerRecord:
    ledger_id: int


Record = EntriesRecord | PutRecord | RemoveRecord | CreateLedgerRecord | DeleteLedgerRecord


def encode_frame(
    body: Sequence[bytes], generation: int, offset: int, synced_to: int
) -> list[bytes]:
    """The frame, in parts like `body`, which `encode_body` returned."""
    zeros = zero_sectors((*body, END), offset + HEADER_BYTES)
    size_bytes = sum(map(len, body))
    header = HEADER.pack(MAGIC, generation, offset, synced_to, size_bytes, zeros, checksum(body))
    return [header + CRC.pack(crc32c(header)), *body, END]


def checksum(parts: Iterable[bytes]) -> int:
    """The CRC32C of the concatenated parts."""
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return crc


def decode_header(data: bytes, offset: int) -> FrameHeader | None:
    """The header at `offset` of a journal file; None if it is invalid or states another offset."""
    if len(data) < offset + HEADER_BYTES:
        return None
    packed = data[offset : offset + HEADER.size]
    magic, *fields = HEADER.unpack(packed)
    header = FrameHeader(*fields)
    (crc,) = CRC.unpack_from(data, offset + HEADER.size)
    if magic != MAGIC or crc != crc32c(packed) or header.offset != offset:
        return None
    return header


def zero_sectors(parts: Sequence[bytes], offset: int) -> int:
    """The number of all-zero aligned sectors of the parts, which begin at file offset `offset`.

    A partial last sector counts; a first sector that begins before the parts does not.
    """
    found = 0
    for index, part in enumerate(parts):
        start = -offset % SECTOR
        offset += len(part)
        first_bytes = part[start::SECTOR]  # of each sector; few of them are zero
        at = first_bytes.find(0)
        while at >= 0:
            sector = sector_at(parts, index, start + at * SECTOR)
            found += sector == ZERO_SECTOR[: len(sector)]
            at = first_bytes.find(0, at + 1)
    return found


def sector_at(parts: Sequence[bytes], index: int, start: int) -> bytes:
    """The sector from `start` of that part on; it may continue in the next parts."""
    sector = parts[index][start : start + SECTOR]
    while len(sector) < SECTOR and index + 1 < len(parts):
        index += 1
        sector += parts[index][: SECTOR - len(sector)]
    return sector


def encode_body(operations: Iterable[Operation]) -> list[bytes]:
    """The body in parts: large entries are separate and uncopied; the bytes between them are
    joined.
    """
    body: list[bytes] = []
    parts: list[bytes | array[int]] = []
    for operation in operations:
        if isinstance(operation, Append):
            ids = operation.ledger_id, operation.first_entry_id, len(operation.entries)
            if operation.tag:
                parts.append(ENTRIES.pack(KIND_TAGGED_ENTRIES, *ids))
                parts.append(TAG.pack(len(operation.tag)) + operation.tag)
            else:
                parts.append(ENTRIES.pack(KIND_ENTRIES, *ids))
            parts.append(operation.lengths)
            parts.append(operation.message_counts)
            if operation.size_bytes < LARGE_BYTES * len(operation.entries):
                parts.extend(operation.entries)
            else:
                body.append(b"".join(parts))
                body.extend(operation.entries)
                parts.clear()
        else:
            parts.append(encode_mutation(operation))
    body.append(b"".join(parts))
    return [part for part in body if part]


def encode_mutation(operation: Operation) -> bytes:
    if isinstance(operation, Put):
        key, (value, version) = operation.key.encode(), operation.stored
        put = PUT.pack(KIND_PUT, version, len(key), len(value)) + key + value
        if operation.new_ledger_id is None:
            return put
        return LEDGER.pack(KIND_CREATE_LEDGER, operation.new_ledger_id) + put
    if isinstance(operation, Remove):
        key = operation.key.encode()
        return REMOVE.pack(KIND_REMOVE, len(key)) + key
    if isinstance(operation, DeleteLedger):
        return LEDGER.pack(KIND_DELETE_LEDGER, operation.ledger_id)
    return b""


def decode_body(body: bytes) -> Iterator[Record]:
    """The records. The body's CRC was right, so undecodable data comes from a bug or a later
    version.

    Raises CorruptStorage for a kind of record that this version does not know.
    """
    at = 0
    while at < len(body):
        kind = body[at]
        if kind in (KIND_ENTRIES, KIND_TAGGED_ENTRIES):
            record, at = decode_entries(body, at, kind)
            yield record
        elif kind == KIND_PUT:
            _, version, key_bytes, value_bytes = PUT.unpack_from(body, at)
            (key, value), at = split(body, at + PUT.size, (key_bytes, value_bytes))
            yield PutRecord(key.decode(), Versioned(value, version))
        elif kind == KIND_REMOVE:
            _, key_bytes = REMOVE.unpack_from(body, at)
            (key,), at = split(body, at + REMOVE.size, (key_bytes,))
            yield RemoveRecord(key.decode())
        elif kind in (KIND_CREATE_LEDGER, KIND_DELETE_LEDGER):
            _, ledger_id = LEDGER.unpack_from(body, at)
            at += LEDGER.size
            created = kind == KIND_CREATE_LEDGER
            yield CreateLedgerRecord(ledger_id) if created else DeleteLedgerRecord(ledger_id)
        else:
            raise CorruptStorage(
                f"The journal has a record of kind {kind}, which this version cannot read: run "
                "the version that wrote it"
            )


def decode_entries(body: bytes, at: int, kind: int) -> tuple[EntriesRecord, int]:
    _, ledger_id, first_entry_id, count = ENTRIES.unpack_from(body, at)
    at += ENTRIES.size
    tag = b""
    if kind == KIND_TAGGED_ENTRIES:
        (tag,), at = split(body, at + TAG.size, TAG.unpack_from(body, at))
    lengths = u32_column(body, at, count)
    message_counts = u32_column(body, at + 4 * count, count)
    entries, at = split(body, at + 8 * count, lengths)
    return EntriesRecord(ledger_id, first_entry_id, entries, message_counts, tag), at


def u32_column(data: bytes, at: int, count: int) -> "array[int]":
    column = array("I")
    column.frombytes(data[at : at + 4 * count])
    return column


def split(data: bytes, at: int, lengths: Iterable[int]) -> tuple[list[bytes], int]:
    """The pieces of these lengths from `at` on, and the offset after the last."""
    pieces = []
    for length in lengths:
        end = at + length
        pieces.append(data[at:end])
        at = end
    return pieces, at
