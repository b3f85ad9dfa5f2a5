"""The format of a ledger's own file: blocks of consecutive entries, each with a CRC that is
verified when the block is read.

Block = header | u32 lengths | u32 message counts | payloads. If entries carry tags, the block has
another magic, and the tags follow the header. A file counts only up to the length in the snapshot;
the rest comes from a flush that a crash interrupted, and the next flush overwrites it. All
functions of this module block; they run in worker threads.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Final

from managed_ledger.checksum import crc32c
from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.embedded.disk import Disk, DiskFile, numbered_files
from managed_ledger.storage.embedded.journal_format import LARGE_BYTES, checksum, split, u32_column
from managed_ledger.storage.entry_columns import EntryColumns
from managed_ledger.storage.tag_runs import NO_TAGS, TagRuns

FOLDER: Final = "ledgers"
MAGIC: Final = b"PBL1"
TAGGED_MAGIC: Final = b"PBL2"
HEADER: Final = Struct("<4sQQIII")  # magic, ledger id, first entry id, count, body bytes, body crc
CRC: Final = Struct("<I")
COUNT: Final = Struct("<I")  # of tag runs
HEADER_BYTES: Final = HEADER.size + CRC.size
BLOCK_BYTES: Final = 64 * 1024
GAP_BYTES: Final = 1024 * 1024  # of missing data in each placeholder, which a read loads in vain


@dataclass(frozen=True, slots=True)
class FlushedPart:
    """The part of a ledger in its file; `file_bytes` is how much of the file counts."""

    entries: int = 0
    file_bytes: int = 0
    size_bytes: int = 0
    message_count: int = 0


@dataclass(frozen=True, slots=True)
class FlushJob:
    """Entries to append to the file."""

    ledger_id: int
    flushed: FlushedPart
    entries: list[bytes]
    message_counts: "array[int]"
    tags: TagRuns


class BlockIndex:
    """The offsets of a file's blocks, by first entry."""

    __slots__ = ("_first_entry_ids", "_offsets", "damage", "next_entry_id", "next_offset")

    def __init__(self) -> None:
        self._first_entry_ids: array[int] = array("Q")
        self._offsets: array[int] = array("Q")
        self.damage: CorruptStorage | None = None  # why the index ends early
        self.next_entry_id = 0
        self.next_offset = 0

    def add(self, first_entry_id: int, offset: int) -> None:
        self._first_entry_ids.append(first_entry_id)
        self._offsets.append(offset)

    def covers(self, entry_id: int) -> bool:
        return self.damage is None or entry_id < self.next_entry_id

    def block_of(self, entry_id: int) -> int:
        """The first entry of the block that contains `entry_id`."""
        return self._first_entry_ids[bisect_right(self._first_entry_ids, entry_id) - 1]

    def end_of_block(self, entry_id: int, next_entry_id: int) -> int:
        """The last entry of the block that contains `entry_id`, given the file's entry count."""
        following = bisect_right(self._first_entry_ids, entry_id)
        if following < len(self._first_entry_ids):
            return self._first_entry_ids[following] - 1
        return (self.next_entry_id if self.damage else next_entry_id) - 1

    def stretch(self, first: int, last: int, file_bytes: int, max_bytes: int) -> tuple[int, int]:
        """The part of the file to read for `first` to `last`: whole blocks, up to `max_bytes`, but
        at least one.
        """
        at = bisect_right(self._first_entry_ids, first) - 1
        stop = bisect_right(self._first_entry_ids, last)
        limit = self._offsets[at] + max_bytes
        if limit < file_bytes:
            stop = max(at + 1, min(stop, bisect_right(self._offsets, limit) - 1))
        end = self._offsets[stop] if stop < len(self._offsets) else file_bytes
        return self._offsets[at], end


NOTHING_FLUSHED: Final = FlushedPart()
NO_BLOCKS: Final = BlockIndex()  # shared by empty files; never modified


@dataclass(frozen=True, slots=True)
class FlushResult:
    flushed: FlushedPart
    blocks: list[tuple[int, int]]  # first entry id, offset


def ledger_file_name(ledger_id: int) -> str:
    return f"{FOLDER}/{ledger_id}"


def ledger_ids(disk: Disk) -> list[int]:
    """The ids of existing files; files with other names are ignored."""
    return numbered_files(disk, FOLDER, ledger_file_name)


def write_all(disk: Disk, jobs: Iterable[FlushJob]) -> list[FlushResult]:
    """Write the entries of each job after the part of its file that counts. Raises OSError."""
    results = []
    for job in jobs:
        file = open_for_flush(disk, job)
        try:
            results.append(write_blocks(file, job))
        finally:
            file.close()
    return results


def sync_all(disk: Disk, jobs: Iterable[FlushJob]) -> None:
    """Sync what was written to the files of these jobs. Raises OSError."""
    for job in jobs:
        file = disk.open(ledger_file_name(job.ledger_id))
        try:
            file.fdatasync()
        finally:
            file.close()


def write_blocks(file: DiskFile, job: FlushJob) -> FlushResult:
    offset, blocks, parts = job.flushed.file_bytes, [], []
    for first_entry_id, block in encode_blocks(job):
        blocks.append((first_entry_id, offset))
        parts += block
        offset += sum(map(len, block))
    file.pwritev_uncached(parts, job.flushed.file_bytes)
    flushed = FlushedPart(
        job.flushed.entries + len(job.entries),
        offset,
        job.flushed.size_bytes + sum(map(len, job.entries)),
        job.flushed.message_count + sum(job.message_counts),
    )
    return FlushResult(flushed, blocks)


def open_for_flush(disk: Disk, job: FlushJob) -> DiskFile:
    """Open or create the file. A file that does not count yet may already exist, from before a
    crash. A file that counts may be missing: the start has logged that, and it must not stop the
    flush of other ledgers.
    """
    name = ledger_file_name(job.ledger_id)
    ways = [disk.create, disk.open] if job.flushed.file_bytes == 0 else [disk.open, disk.create]
    try:
        file = ways[0](name)
    except (FileExistsError, FileNotFoundError):
        file = ways[1](name)
    try:
        if file.size() < job.flushed.file_bytes:
            fence_gap(disk, file, job)
    except BaseException:
        file.close()
        raise
    return file


def fence_gap(disk: Disk, file: DiskFile, job: FlushJob) -> None:
    """Write placeholders for blocks that cannot be read back, so that later blocks can still be
    found. They are durable before later blocks are written; otherwise the gap could go unnoticed.
    """
    index = load_index(disk, job.ledger_id, job.flushed)
    offset, first, entries = index.next_offset, index.next_entry_id, job.flushed.entries
    lacking_bytes = job.flushed.file_bytes - offset
    pieces = max(1, lacking_bytes // GAP_BYTES)
    sizes = [lacking_bytes - (pieces - 1) * GAP_BYTES, *[GAP_BYTES] * (pieces - 1)]
    for size in sizes:  # the first block stands for all the entries
        body_bytes = size - HEADER_BYTES
        wrong = crc32c(bytes(body_bytes)) ^ 1
        header = HEADER.pack(MAGIC, job.ledger_id, first, entries - first, body_bytes, wrong)
        file.pwritev([header + CRC.pack(crc32c(header))], offset)
        offset, first = offset + size, entries
    file.fdatasync()


def encode_blocks(job: FlushJob) -> Iterator[tuple[int, list[bytes]]]:
    ends = list(accumulate(map(len, job.entries)))
    at = 0
    while at < len(job.entries):
        start = ends[at - 1] if at else 0
        stop = max(at + 1, bisect_right(ends, start + BLOCK_BYTES, at))
        entries = job.entries[at:stop]
        first_entry_id = job.flushed.entries + at
        counts = job.message_counts[at : at + len(entries)]
        tags = job.tags.within(first_entry_id, first_entry_id + len(entries) - 1)
        yield first_entry_id, encode_block(job.ledger_id, first_entry_id, entries, counts, tags)
        at += len(entries)


def encode_block(
    ledger_id: int,
    first_entry_id: int,
    entries: Sequence[bytes],
    message_counts: "array[int]",
    tags: TagRuns,
) -> list[bytes]:
    lengths = array("I", map(len, entries))
    tagged = encode_tags(tags, first_entry_id) if tags else b""
    columns = b"".join((tagged, lengths, message_counts))
    large = len(entries) * LARGE_BYTES <= sum(lengths)
    body = [columns, *entries] if large else [b"".join((columns, *entries))]
    ids = ledger_id, first_entry_id, len(entries), sum(map(len, body))
    header = HEADER.pack(TAGGED_MAGIC if tags else MAGIC, *ids, checksum(body))
    return [header + CRC.pack(crc32c(header)), *body]


def encode_tags(tags: TagRuns, first_entry_id: int) -> bytes:
    """The u32 count of runs; columns with the first and the last entry, counted within the block,
    and the tag's size; the tags.
    """
    firsts = array("I", [first - first_entry_id for first in tags.firsts])
    lasts = array("I", [last - first_entry_id for last in tags.lasts])
    lengths = array("I", map(len, tags.tags))
    return b"".join((COUNT.pack(len(tags)), firsts, lasts, lengths, *tags.tags))


def decode_tags(data: bytes, at: int, first_entry_id: int) -> tuple[TagRuns, int]:
    """The tags, and the offset after them."""
    (count,) = COUNT.unpack_from(data, at)
    at += COUNT.size
    firsts, lasts, lengths = (u32_column(data, at + 4 * count * n, count) for n in range(3))
    tags, at = split(data, at + 12 * count, lengths)
    runs = TagRuns()
    for first, last, tag in zip(firsts, lasts, tags, strict=True):
        runs.add(first_entry_id + first, first_entry_id + last, tag)
    return runs, at


def load_index(disk: Disk, ledger_id: int, flushed: FlushedPart) -> BlockIndex:
    """Build the index by reading header after header, up to the first bad one. Raises OSError."""
    index = BlockIndex()
    try:
        read_headers(disk, ledger_id, flushed, index)
    except CorruptStorage as error:
        index.damage = error
    except FileNotFoundError:
        index.damage = CorruptStorage(f"{ledger_file_name(ledger_id)} is missing")
    return index


def read_headers(disk: Disk, ledger_id: int, flushed: FlushedPart, index: BlockIndex) -> None:
    """Raises OSError, and CorruptStorage at the first bad header."""
    name = ledger_file_name(ledger_id)
    file = disk.open(name)
    try:
        offset, next_entry_id, size = 0, 0, file.size()
        while offset < flushed.file_bytes:
            data = file.pread(HEADER_BYTES, offset)
            header = decode_header(data, 0, ledger_id, name, offset)
            _, first_entry_id, count, body_bytes, _ = header
            if first_entry_id != next_entry_id or offset + HEADER_BYTES + body_bytes > size:
                raise corrupt(name, offset)
            index.add(first_entry_id, offset)
            next_entry_id += count
            offset += HEADER_BYTES + body_bytes
            index.next_entry_id, index.next_offset = next_entry_id, offset
        if (offset, next_entry_id) != (flushed.file_bytes, flushed.entries):
            raise corrupt(name, offset)
    finally:
        file.close()


def read_blocks(disk: Disk, ledger_id: int, start: int, end: int) -> list[EntryColumns]:
    """The blocks from offset `start` to `end`, up to the first bad one. At least one block.

    Raises CorruptStorage if the first block is bad; OSError.
    """
    name = ledger_file_name(ledger_id)
    file = disk.open(name)
    try:
        data = file.pread(end - start, start)
    finally:
        file.close()
    blocks: list[EntryColumns] = []
    at = 0
    while at < end - start:
        try:
            block, at = decode_block(data, at, ledger_id, name, start)
        except CorruptStorage:
            if not blocks:
                raise
            break
        blocks.append(block)
    return blocks


def decode_block(
    data: bytes, at: int, ledger_id: int, name: str, file_offset: int
) -> tuple[EntryColumns, int]:
    """The block at `at` of `data`, which begins at `file_offset`, and the next block's start."""
    offset = file_offset + at
    header = decode_header(data, at, ledger_id, name, offset)
    magic, first_entry_id, count, body_bytes, crc = header
    at += HEADER_BYTES
    end = at + body_bytes
    if crc32c(memoryview(data)[at:end]) != crc or end > len(data):
        raise corrupt(name, offset)
    tags = NO_TAGS
    if magic == TAGGED_MAGIC:
        tags, at = decode_tags(data, at, first_entry_id)
    lengths = u32_column(data, at, count)
    message_counts = u32_column(data, at + 4 * count, count)
    entries, end = split(data, at + 8 * count, lengths)
    return EntryColumns(first_entry_id, entries, message_counts, tags), end


def decode_header(
    data: bytes, at: int, ledger_id: int, name: str, offset: int
) -> tuple[bytes, int, int, int, int]:
    """Magic, first entry id, count, body bytes, body crc."""
    packed = data[at : at + HEADER.size]
    if len(data) < at + HEADER_BYTES or CRC.unpack_from(data, at + HEADER.size)[0] != crc32c(
        packed
    ):
        raise corrupt(name, offset)
    magic, found_id, first_entry_id, count, body_bytes, body_crc = HEADER.unpack(packed)
    if magic not in (MAGIC, TAGGED_MAGIC) or found_id != ledger_id:
        raise corrupt(name, offset)
    return magic, first_entry_id, count, body_bytes, body_crc


def corrupt(name: str, offset: int) -> CorruptStorage:
    return CorruptStorage(f"{name} does not return what was written at offset {offset}")


def damage_of(disk: Disk, ledger_id: int, flushed: FlushedPart) -> str | None:
    """The damage that shows without reading the blocks, if any. Raises OSError."""
    name = ledger_file_name(ledger_id)
    try:
        file = disk.open(name)
    except FileNotFoundError:
        return f"{name} is missing"
    try:
        size = file.size()
    finally:
        file.close()
    if size < flushed.file_bytes:
        return f"{name} has {size} of {flushed.file_bytes} bytes"
    return None
