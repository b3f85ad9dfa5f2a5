"""The metadata snapshot: where recovery starts, so that older journals can be removed.

It holds every key and, for every ledger, how much of it is in its own file. Journals from
`first_generation` on are replayed on top; the snapshot may already contain any of their records.

The first line states the format of the whole data directory, in words, and is written before
anything in that format. Increase `FORMAT` when earlier versions would misread new data: they then
refuse the directory. Versions older than the line itself consider the file damaged and refuse it,
too.
"""

import re
from array import array
from dataclasses import dataclass
from struct import Struct
from typing import Final

from managed_ledger.checksum import crc32c
from managed_ledger.errors import CorruptStorage, NewerFormat
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.embedded.disk import Disk
from managed_ledger.storage.embedded.journal_format import split, u32_column
from managed_ledger.storage.embedded.ledger_files import FlushedPart

FOLDER: Final = "metadata"
NAME: Final = "metadata/snapshot"
NEW_NAME: Final = "metadata/snapshot.new"
FORMAT: Final = 3
FIRST_FORMAT: Final = 1  # without a line; begins with:
_FIRST_MAGIC: Final = b"PBS1"
_FORMAT_LINE: Final = re.compile(rb"pybroker data directory, format (\d{1,9})\n")
HEADER: Final = Struct("<IQ")  # body crc, body bytes; after the first line
BODY: Final = Struct("<QQQQ")  # first generation, next ledger id, ledgers, keys
_BEGINNING_BYTES: Final = 256  # more than the line and the header
_LARGE_BYTES: Final = 64 * 1024 * 1024  # larger files are read only if they can be a snapshot
LEDGER: Final = Struct("<QQQQQ")  # ledger id, then a FlushedPart


@dataclass(frozen=True, slots=True)
class Snapshot:
    first_generation: int
    next_ledger_id: int
    ledgers: list[tuple[int, FlushedPart]]
    items: list[tuple[str, Versioned]]
    format: int = FORMAT


EMPTY: Final = Snapshot(1, 0, [], [])


def encode(snapshot: Snapshot) -> bytes:
    keys = [key.encode() for key, _ in snapshot.items]
    values = [stored.value for _, stored in snapshot.items]
    counts = len(snapshot.ledgers), len(keys)
    body = b"".join(
        (
            BODY.pack(snapshot.first_generation, snapshot.next_ledger_id, *counts),
            *(encode_ledger(ledger_id, part) for ledger_id, part in snapshot.ledgers),
            array("Q", [stored.version for _, stored in snapshot.items]),
            array("I", map(len, keys)),
            array("I", map(len, values)),
            *keys,
            *values,
        )
    )
    line = b"pybroker data directory, format %d\n" % FORMAT
    return line + HEADER.pack(crc32c(body), len(body)) + body


def decode(data: bytes) -> Snapshot:
    """Raises CorruptStorage if the data is cut or its checksum is wrong, NewerFormat if a later
    version wrote it.
    """
    found, at = _format_of(data)
    if len(data) < at + HEADER.size:
        raise corrupt()
    crc, body_bytes = HEADER.unpack_from(data, at)
    body = data[at + HEADER.size :]
    if len(body) != body_bytes or crc32c(body) != crc:
        raise corrupt()
    first_generation, next_ledger_id, ledger_count, key_count = BODY.unpack_from(body)
    at = BODY.size + ledger_count * LEDGER.size
    ledgers = [
        (ledger_id, FlushedPart(*part))
        for ledger_id, *part in LEDGER.iter_unpack(body[BODY.size : at])
    ]
    items = decode_items(body, at, key_count)
    return Snapshot(first_generation, next_ledger_id, ledgers, items, found)


def _format_of(data: bytes) -> tuple[int, int]:
    """The format, and the offset of the header."""
    if data.startswith(_FIRST_MAGIC):
        return FIRST_FORMAT, len(_FIRST_MAGIC)
    line = _FORMAT_LINE.match(data)
    if line is None:
        raise corrupt()
    found = int(line[1])
    if found > FORMAT:
        raise NewerFormat(
            f"the data directory has format {found}, written by a later version of pybroker; this "
            f"version reads formats up to {FORMAT}: start the later version again, or restore a "
            "backup from before the upgrade"
        )
    if found <= FIRST_FORMAT:
        raise corrupt()
    return found, line.end()


def write(disk: Disk, snapshot: Snapshot) -> None:
    """Durable when it returns; until then the previous snapshot counts. Raises OSError."""
    disk.unlink(NEW_NAME)
    file = disk.create(NEW_NAME)
    try:
        file.pwritev([encode(snapshot)], 0)
        file.fdatasync()
    finally:
        file.close()
    disk.rename(NEW_NAME, NAME)
    disk.sync_folder(FOLDER)


def read(disk: Disk) -> Snapshot | None:
    """The snapshot; None if there is none. Raises CorruptStorage, NewerFormat."""
    try:
        file = disk.open(NAME)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        if size > _LARGE_BYTES and size != _whole_bytes(file.pread(_BEGINNING_BYTES, 0)):
            raise corrupt()
        return decode(file.pread(size, 0))
    finally:
        file.close()


def _whole_bytes(beginning: bytes) -> int:
    """The size of the undamaged file, according to its header."""
    _, at = _format_of(beginning)
    return at + HEADER.size + int(HEADER.unpack_from(beginning, at)[1])


def encode_ledger(ledger_id: int, part: FlushedPart) -> bytes:
    columns = part.entries, part.file_bytes, part.size_bytes, part.message_count
    return LEDGER.pack(ledger_id, *columns)


def decode_items(body: bytes, at: int, count: int) -> list[tuple[str, Versioned]]:
    versions = array("Q")
    versions.frombytes(body[at : at + 8 * count])
    at += 8 * count
    key_lengths = u32_column(body, at, count)
    value_lengths = u32_column(body, at + 4 * count, count)
    keys, at = split(body, at + 8 * count, key_lengths)
    values, _ = split(body, at, value_lengths)
    return [
        (key.decode(), Versioned(value, version))
        for key, value, version in zip(keys, values, versions, strict=True)
    ]


def corrupt() -> CorruptStorage:
    return CorruptStorage(
        f"{NAME} does not return what was written: check the disk, and restore the data "
        "directory from a backup"
    )
