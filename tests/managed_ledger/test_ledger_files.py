"""A ledger's file: its blocks can be read from any entry on, or damage is reported."""

import errno
from array import array

import pytest
from crc32c import crc32c
from faulty_disk import FaultyDisk, failing

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.embedded import ledger_files
from managed_ledger.storage.embedded.journal_format import LARGE_BYTES
from managed_ledger.storage.embedded.ledger_files import (
    BLOCK_BYTES,
    CRC,
    HEADER_BYTES,
    BlockIndex,
    FlushedPart,
    FlushJob,
    damage_of,
    decode_block,
    encode_blocks,
    load_index,
    open_for_flush,
    read_blocks,
    sync_all,
    write_all,
)
from managed_ledger.storage.tag_runs import TagRuns

LEDGER = 4
NAME = "ledgers/4"
SIZES = [
    [BLOCK_BYTES // 2, BLOCK_BYTES // 2, 1],  # the first two fill a block exactly
    [BLOCK_BYTES + 1],
    [0, 0, 3],
    [BLOCK_BYTES - 1, 1, 7, BLOCK_BYTES // 2],
]
BLOCKS = [2, 1, 1, 3, 2, 2]  # entries per block


def job_of(flushed: FlushedPart, sizes: list[int], tag: bytes = b"") -> FlushJob:
    first = flushed.entries
    entries = [bytes([65 + (first + n) % 26]) * size for n, size in enumerate(sizes)]
    counts = array("I", [first + n for n in range(len(sizes))])
    tags = TagRuns()
    if tag:
        tags.add(first, first + len(sizes) - 1, tag)
    return FlushJob(LEDGER, flushed, entries, counts, tags)


def written() -> tuple[FaultyDisk, FlushedPart, list[bytes]]:
    """Four flushes; the third and the fourth carry tags."""
    disk, flushed, entries = FaultyDisk(), FlushedPart(), []
    for sizes, tag in zip(SIZES, (b"", b"", b"t", b"long tag"), strict=True):
        job = job_of(flushed, sizes, tag)
        (result,) = write_all(disk, [job])
        flushed, entries = result.flushed, entries + job.entries
    return disk, flushed, entries


def starts_of(blocks: list[int]) -> list[int]:
    return [sum(blocks[:n]) for n in range(len(blocks))]


def test_flushes_follow_each_other_and_count_what_they_wrote():
    disk, flushed, entries = written()
    sizes = sum(map(len, entries))
    assert flushed == FlushedPart(11, len(disk.files[NAME]), sizes, sum(range(11)))
    assert disk.open_files == 0
    assert [operation for operation, _ in disk.operations].count("create") == 1
    assert damage_of(disk, LEDGER, flushed) is None


def test_the_index_says_where_each_block_begins_and_ends():
    disk, flushed, _ = written()
    index = load_index(disk, LEDGER, flushed)
    assert index.damage is None
    assert (index.next_entry_id, index.next_offset) == (11, flushed.file_bytes)
    for start, count in zip(starts_of(BLOCKS), BLOCKS, strict=True):
        for entry in range(start, start + count):
            assert index.covers(entry)
            assert index.block_of(entry) == start
            assert index.end_of_block(entry, 11) == start + count - 1


@pytest.mark.parametrize("max_bytes", [1, BLOCK_BYTES, 3 * BLOCK_BYTES, 1 << 30])
def test_a_stretch_is_whole_blocks_from_the_one_that_is_wanted_on(max_bytes):
    disk, flushed, entries = written()
    index = load_index(disk, LEDGER, flushed)
    for first in range(11):
        for last in range(first, 11):
            start, end = index.stretch(first, last, flushed.file_bytes, max_bytes)
            blocks = read_blocks(disk, LEDGER, start, end)
            assert blocks[0].first_entry_id == index.block_of(first)
            assert blocks[-1].first_entry_id <= last
            assert len(blocks) == 1 or end - start <= max_bytes
            complete = blocks[-1].next_entry_id > last
            following = blocks[-1].next_entry_id
            assert complete or end + HEADER_BYTES + len(entries[following]) - start > max_bytes
            for block in blocks:
                own = range(block.first_entry_id, block.next_entry_id)
                assert block.entries == [entries[at] for at in own]
                assert block.message_counts.tolist() == list(own)
    assert disk.open_files == 0


def test_tags_stand_in_the_block_of_their_entries():
    disk, flushed, _ = written()
    blocks = read_blocks(disk, LEDGER, 0, flushed.file_bytes)
    assert [block.first_entry_id for block in blocks] == starts_of(BLOCKS)
    assert [list(block.tags) for block in blocks] == [
        [],
        [],
        [],
        [(4, 6, b"t")],
        [(7, 8, b"long tag")],
        [(9, 10, b"long tag")],
    ]


def test_the_bytes_of_a_block_stay_what_they_are():
    plain = FlushJob(LEDGER, FlushedPart(2), [b"ab", b""], array("I", [1, 5]), TagRuns())
    ((first, parts),) = encode_blocks(plain)
    body = bytes.fromhex("02000000000000000100000005000000") + b"ab"
    head = bytes.fromhex("50424c31040000000000000002000000000000000200000012000000")
    assert first == 2
    assert b"".join(parts)[:-26] == head  # before two checksums and the body
    assert b"".join(parts)[-26:-18] == b"".join(
        CRC.pack(crc) for crc in (crc32c(body), crc32c(head + CRC.pack(crc32c(body))))
    )
    assert b"".join(parts)[-18:] == body
    tags = TagRuns()
    tags.add(3, 3, b"xyz")
    tagged = FlushJob(LEDGER, FlushedPart(2), [b"ab", b"c"], array("I", [1, 5]), tags)
    ((_, parts),) = encode_blocks(tagged)
    joined = b"".join(parts)
    assert joined[:4] == b"PBL2"
    columns = "0100000001000000010000000300000078797a"
    assert joined[HEADER_BYTES:].hex() == columns + "02000000010000000100000005000000" + (
        b"abc".hex()
    )


def test_a_tag_of_some_entries_of_a_block_is_read_back_with_them():
    tags = TagRuns()
    for first, last in ((3, 3), (5, 6)):
        tags.add(first, last, b"xyz")
    entries = [b"e%d" % n for n in range(2, 8)]
    job = FlushJob(LEDGER, FlushedPart(2), entries, array("I", range(6)), tags)
    ((_, parts),) = encode_blocks(job)
    data = b"".join(parts)
    block, end = decode_block(data, 0, LEDGER, NAME, 0)
    assert (block.entries, block.message_counts.tolist(), end) == (entries, [*range(6)], len(data))
    assert list(block.tags) == [(3, 3, b"xyz"), (5, 6, b"xyz")]


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([BLOCK_BYTES + 1, 1, 1], [1, 2]),
        ([1, BLOCK_BYTES - 1, 1], [2, 1]),
        ([1, BLOCK_BYTES, 1], [1, 1, 1]),
        ([BLOCK_BYTES, 0, 0], [3]),
    ],
)
def test_a_block_has_what_fits_and_at_least_one_entry(sizes, blocks):
    (result,) = write_all(FaultyDisk(), [job_of(FlushedPart(), sizes)])
    firsts = [first for first, _ in result.blocks]
    assert firsts == starts_of(blocks)
    offsets = [offset for _, offset in result.blocks]
    assert offsets == [
        HEADER_BYTES * n + sum(sizes[:first]) + 8 * first for n, first in enumerate(firsts)
    ]


def test_a_block_may_begin_anywhere_in_what_was_read():
    disk, flushed, entries = written()
    data = bytes(disk.files[NAME])
    at, found = 0, []
    while at < len(data):
        block, at = decode_block(data, at, LEDGER, NAME, 0)
        found += block.entries
    assert (found, at) == (entries, flushed.file_bytes)
    with pytest.raises(CorruptStorage, match=f"{NAME} .* offset 1007"):
        decode_block(data, 7, LEDGER, NAME, 1000)
    with pytest.raises(CorruptStorage):
        decode_block(data, 0, LEDGER + 1, NAME, 0)
    with pytest.raises(CorruptStorage):
        decode_block(data[: HEADER_BYTES - 1], 0, LEDGER, NAME, 0)
    small = b"".join(next(encode_blocks(job_of(FlushedPart(), [5])))[1])
    for size in range(len(small)):
        with pytest.raises(CorruptStorage):
            decode_block(small[:size], 0, LEDGER, NAME, 0)


def test_what_lies_behind_the_part_that_counts_is_overwritten():
    disk, flushed, _ = written()
    (again,) = write_all(disk, [job_of(flushed, [100])])
    rest_of_a_crash = bytes(disk.files[NAME])
    (result,) = write_all(disk, [job_of(flushed, [40], b"tag")])
    assert len(disk.files[NAME]) == len(rest_of_a_crash)
    index = load_index(disk, LEDGER, result.flushed)
    assert (index.damage, index.next_entry_id) == (None, 12)
    assert again.flushed.file_bytes > result.flushed.file_bytes


def test_a_file_from_before_a_crash_that_does_not_count_yet_is_taken():
    disk = FaultyDisk({NAME: b"left over" * 100})
    (result,) = write_all(disk, [job_of(FlushedPart(), [5])])
    assert read_blocks(disk, LEDGER, 0, result.flushed.file_bytes)[0].entries == [b"A" * 5]


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_an_index_ends_where_a_header_is_bad_and_what_is_before_is_read(block):
    disk, flushed, _ = written()
    good = load_index(disk, LEDGER, flushed)
    start = starts_of(BLOCKS)[block]
    offset, _ = good.stretch(start, start, flushed.file_bytes, 1)
    disk.files[NAME][offset + 5] ^= 1
    index = load_index(disk, LEDGER, flushed)
    assert isinstance(index.damage, CorruptStorage)
    assert str(offset) in str(index.damage)
    assert (index.next_entry_id, index.next_offset) == (start, offset)
    assert [entry for entry in range(11) if index.covers(entry)] == list(range(start))
    if block:
        assert index.end_of_block(start - 1, 11) == start - 1
        blocks = read_blocks(disk, LEDGER, 0, flushed.file_bytes)  # up to the first bad block
        assert blocks[-1].next_entry_id == start
    else:
        with pytest.raises(CorruptStorage):
            read_blocks(disk, LEDGER, 0, flushed.file_bytes)
    assert disk.open_files == 0


def test_a_file_that_is_too_short_or_gone_is_damaged_from_there_on():
    disk, flushed, _ = written()
    last = starts_of(BLOCKS)[-1]
    del disk.files[NAME][-1:]
    index = load_index(disk, LEDGER, flushed)
    assert index.damage is not None
    assert (index.next_entry_id, index.covers(last)) == (last, False)
    size = flushed.file_bytes
    assert damage_of(disk, LEDGER, flushed) == f"{NAME} has {size - 1} of {size} bytes"
    assert disk.open_files == 0
    disk.unlink(NAME)
    index = load_index(disk, LEDGER, flushed)
    assert "missing" in str(index.damage)
    assert (index.next_entry_id, index.covers(0)) == (0, False)
    assert damage_of(disk, LEDGER, flushed) == f"{NAME} is missing"


@pytest.mark.parametrize("part", ["entries", "file_bytes"])
def test_a_file_that_does_not_hold_what_it_should_is_damaged(part):
    disk, flushed, _ = written()
    shorter = load_index(disk, LEDGER, flushed).stretch(8, 8, flushed.file_bytes, 1)[1]
    other = FlushedPart(10, flushed.file_bytes) if part == "entries" else FlushedPart(11, shorter)
    assert load_index(disk, LEDGER, other).damage is not None


def test_a_block_of_another_place_in_the_file_does_not_pass():
    """Its checksums are right, but its entries are others."""
    disk, flushed, _ = written()
    data = disk.files[NAME]
    index = load_index(disk, LEDGER, flushed)
    start, end = index.stretch(3, 3, flushed.file_bytes, 1)
    del data[start:end]
    damaged = load_index(disk, LEDGER, FlushedPart(11, flushed.file_bytes - (end - start)))
    assert (damaged.next_entry_id, damaged.next_offset) == (3, start)


def test_every_file_of_a_flush_is_synced_and_closed():
    disk = FaultyDisk()
    jobs = [
        FlushJob(ledger_id, FlushedPart(), [b"x"], array("I", [1]), TagRuns())
        for ledger_id in (3, 8)
    ]
    write_all(disk, jobs)
    sync_all(disk, jobs)
    assert [name for what, name in disk.operations if what == "fdatasync"] == [
        "ledgers/3",
        "ledgers/8",
    ]
    assert disk.open_files == 0


def test_files_with_other_names_are_no_ledgers():
    disk = FaultyDisk({"ledgers/12": b"", "ledgers/x": b"", "ledgers/7": b"", "journal/1": b""})
    assert sorted(ledger_files.ledger_ids(disk)) == [7, 12]


def test_large_entries_are_written_from_where_they_are():
    large = [bytes(LARGE_BYTES), bytes(LARGE_BYTES)]
    ((_, parts),) = encode_blocks(
        FlushJob(LEDGER, FlushedPart(), large, array("I", [1, 1]), TagRuns())
    )
    assert any(part is large[0] for part in parts)
    smaller = [bytes(LARGE_BYTES), bytes(LARGE_BYTES - 1), bytes(LARGE_BYTES)]
    ((_, joined),) = encode_blocks(
        FlushJob(LEDGER, FlushedPart(), smaller, array("I", [1, 1, 1]), TagRuns())
    )
    assert len(joined) == 2


def test_an_index_of_blocks_answers_as_a_list_would():
    index = BlockIndex()
    for first, offset in ((0, 0), (3, 100), (4, 150), (9, 900)):
        index.add(first, offset)
    assert [index.block_of(entry) for entry in range(11)] == [0, 0, 0, 3, 4, 4, 4, 4, 4, 9, 9]
    ends = [index.end_of_block(entry, 12) for entry in range(11)]
    assert ends == [2, 2, 2, 3, 8, 8, 8, 8, 8, 11, 11]
    assert index.stretch(0, 3, 1000, 150) == (0, 150)
    assert index.stretch(0, 3, 1000, 149) == (0, 100)
    assert index.stretch(1, 10, 1000, 899) == (0, 150)
    assert index.stretch(1, 10, 1000, 900) == (0, 900)
    assert index.stretch(1, 10, 1000, 999) == (0, 900)
    assert index.stretch(1, 10, 1000, 1000) == (0, 1000)
    assert index.stretch(10, 10, 1000, 1) == (900, 1000)


@pytest.mark.parametrize(
    ("lacking_bytes", "expected"),
    [(900, [0]), (1000, [0]), (1999, [0]), (2000, [0, 1000]), (2500, [0, 1500]), (100, [0])],
)
def test_what_a_file_lacks_is_fenced_off_by_blocks_that_do_not_read_back(
    monkeypatch, lacking_bytes, expected
):
    monkeypatch.setattr(ledger_files, "GAP_BYTES", 1000)
    disk, part = FaultyDisk(), FlushedPart(entries=10, file_bytes=lacking_bytes)
    job = job_of(part, [30])
    open_for_flush(disk, job).close()
    assert len(disk.files[NAME]) <= lacking_bytes
    writes = [number for number, (what, _) in enumerate(disk.operations) if what == "write"]
    assert disk.operations.index(("fdatasync", NAME)) > writes[-1]
    (result,) = write_all(disk, [job])
    index = load_index(disk, LEDGER, result.flushed)
    assert index.damage is None
    assert (index.next_entry_id, index.next_offset) == (11, result.flushed.file_bytes)
    assert list(index._offsets) == [*expected, lacking_bytes]
    assert list(index._first_entry_ids) == [0, *[10] * len(expected)]
    for offset in expected:
        with pytest.raises(CorruptStorage):
            read_blocks(disk, LEDGER, offset, lacking_bytes)
    (block,) = read_blocks(disk, LEDGER, lacking_bytes, result.flushed.file_bytes)
    assert list(block.entries) == job.entries


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_nothing_is_written_behind_what_could_not_be_fenced_off(operation):
    disk = FaultyDisk()
    disk.fault = failing(errno.ENOSPC, (operation, NAME))
    with pytest.raises(OSError, match="ENOSPC"):
        open_for_flush(disk, job_of(FlushedPart(entries=10, file_bytes=2500), [30]))
    assert disk.open_files == 0
