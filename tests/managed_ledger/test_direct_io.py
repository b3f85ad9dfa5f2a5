"""Writes that bypass the page cache: the file is the same as after normal writes."""

import errno
import fcntl
import os
import random
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from managed_ledger.storage.embedded import direct_io, os_disk
from managed_ledger.storage.embedded.direct_io import (
    BLOCK_BYTES,
    BUFFER_BYTES,
    BUFFERS_KEPT,
    LEAST_BYTES,
    read_direct,
    take_front,
)
from managed_ledger.storage.embedded.ledger_files import (
    FlushedPart,
    FlushJob,
    read_blocks,
    sync_all,
    write_all,
)
from managed_ledger.storage.embedded.os_disk import (
    LARGE_READ_BYTES,
    LARGEST_DIRECT_READ_BYTES,
    OsDisk,
    OsFile,
)
from managed_ledger.storage.tag_runs import NO_TAGS

BEFORE = b"what was there before"


@pytest.fixture
def disk(tmp_path: Path) -> OsDisk:
    return OsDisk(tmp_path)


@pytest.fixture
def file(disk: OsDisk) -> OsFile:
    file = disk.create("journal/1")
    file.pwritev([BEFORE], 0)
    return file


def parts_of(seed: int, size: int) -> list[bytes]:
    rng = random.Random(seed)
    parts: list[bytes] = []
    while (left := size - sum(map(len, parts))) > 0:
        parts.append(rng.randbytes(min(left, rng.choice((0, 1, 50, BLOCK_BYTES, 300_000)))))
    return parts


def content(file: OsFile) -> bytes:
    return file.pread(file.size(), 0)


def expect(file: OsFile, parts: Sequence[bytes], offset: int) -> None:
    assert content(file) == BEFORE + bytes(offset - len(BEFORE)) + b"".join(parts)


@pytest.mark.parametrize("offset", [len(BEFORE), 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize(
    "size",
    [1, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 9_000, BUFFER_BYTES, 3 * BUFFER_BYTES + 1],
)
def test_the_file_is_the_same_byte_for_byte(file: OsFile, offset: int, size: int) -> None:
    parts = parts_of(size, size)
    file.pwritev_uncached(parts, offset)
    file.fdatasync()
    expect(file, parts, offset)


def test_writes_one_behind_the_other_share_blocks(file: OsFile) -> None:
    at, written = len(BEFORE), BEFORE
    for seed, size in enumerate((400_001, 5, 300_000, 100, 2_000_003, 17)):
        parts = parts_of(seed, size)
        file.pwritev_uncached(parts, at)
        written += b"".join(parts)
        at += size
        assert content(file) == written


def test_a_second_descriptor_sees_what_was_written(disk: OsDisk, file: OsFile) -> None:
    parts = parts_of(1, 1_000_000)
    file.pwritev_uncached(parts, len(BEFORE))
    assert disk.open("journal/1").pread(2_000_000, 0) == BEFORE + b"".join(parts)


def test_a_write_over_what_was_taken_back_stands(file: OsFile) -> None:
    file.pwritev_uncached(parts_of(1, 1_000_000), len(BEFORE))
    file.truncate(len(BEFORE))
    parts = parts_of(2, 700_000)
    file.pwritev_uncached(parts, len(BEFORE))
    expect(file, parts, len(BEFORE))


def test_a_file_system_that_cannot_is_asked_once(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(descriptor: int, data: memoryview, offset: int) -> int:
        asked.append(offset)
        raise OSError(errno.EINVAL, "invalid argument")

    monkeypatch.setattr(direct_io.os, "pwrite", refuse)
    for seed in (3, 4):
        parts = parts_of(seed, 2_500_000)
        file.pwritev_uncached(parts, len(BEFORE))
        expect(file, parts, len(BEFORE))
    assert asked == [BLOCK_BYTES]


@pytest.mark.parametrize("offset", [len(BEFORE), BLOCK_BYTES])
@pytest.mark.parametrize("blocks", [LEAST_BYTES // BLOCK_BYTES, 3 * BUFFER_BYTES // BLOCK_BYTES])
@pytest.mark.parametrize(("behind", "too_few"), [(0, True), (0, False), (700, False)])
def test_only_the_whole_blocks_of_a_large_write_go_around_the_cache(
    file: OsFile,
    monkeypatch: pytest.MonkeyPatch,
    offset: int,
    blocks: int,
    behind: int,
    too_few: bool,
) -> None:
    """They are written in pieces of the buffer's size; afterwards the file's flags are restored."""
    flags, straight, pwrite = [os.O_RDWR], [], os.pwrite

    def fake_fcntl(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL:
            flags.append(argument)
        return flags[-1]

    def note(descriptor: int, data: memoryview, at: int) -> int:
        assert flags[-1] == os.O_RDWR | os.O_DIRECT
        straight.append((at, len(data)))
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(direct_io.fcntl, "fcntl", fake_fcntl)
    monkeypatch.setattr(direct_io.os, "pwrite", note)
    end = BLOCK_BYTES * (1 + blocks) + behind - too_few
    parts = parts_of(6, end - offset)
    file.pwritev_uncached(parts, offset)
    expect(file, parts, offset)
    pieces = [
        (BLOCK_BYTES + at, min(BUFFER_BYTES, blocks * BLOCK_BYTES - at))
        for at in range(0, blocks * BLOCK_BYTES, BUFFER_BYTES)
    ]
    if too_few:  # one byte less than the last block
        blocks -= 1
        pieces[-1] = pieces[-1][0], pieces[-1][1] - BLOCK_BYTES
    assert straight == (pieces if blocks * BLOCK_BYTES >= LEAST_BYTES else [])
    assert flags[-1] == os.O_RDWR


def test_what_a_short_write_left_out_goes_the_usual_way(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(
        direct_io.os, "pwrite", lambda fd, data, at: pwrite(fd, data[:BLOCK_BYTES], at)
    )
    parts = parts_of(4, 2_500_000)
    file.pwritev_uncached(parts, len(BEFORE))
    expect(file, parts, len(BEFORE))


def test_an_error_of_the_disk_is_raised(file: OsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space left on the device")

    monkeypatch.setattr(direct_io.os, "pwrite", fail)
    with pytest.raises(OSError, match="no space left"):
        file.pwritev_uncached(parts_of(5, 1_000_000), len(BEFORE))


def test_buffers_are_used_again_and_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "_free_buffers", [])
    for _ in range(3):
        with ExitStack() as stack:
            used = [stack.enter_context(direct_io._buffer()) for _ in range(BUFFERS_KEPT + 3)]
            assert len(set(map(id, used))) == len(used), "one for each"
        assert len(direct_io._free_buffers) == BUFFERS_KEPT
    (free, *_) = reversed(direct_io._free_buffers)
    with direct_io._buffer() as buffer:
        assert buffer is free
        assert len(buffer) == BUFFER_BYTES


def test_taking_the_front_divides_a_view_where_it_must() -> None:
    views = [memoryview(b"abc"), memoryview(b"defg"), memoryview(b"hi")]
    assert [bytes(view) for view in take_front(views, 5)] == [b"abc", b"de"]
    assert [bytes(view) for view in views] == [b"fg", b"hi"]
    assert [bytes(view) for view in take_front(views, 2)] == [b"fg"]
    assert [bytes(view) for view in views] == [b"hi"], "nothing empty is left"
    assert [bytes(view) for view in take_front(views, 100)] == [b"hi"]
    assert views == []


def test_a_ledgers_blocks_go_around_the_cache_too(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are written they are read from memory, and afterwards rarely."""
    pwrite, direct_bytes = os.pwrite, []

    def counted(descriptor: int, data: memoryview, offset: int) -> int:
        direct_bytes.append(len(data))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(direct_io.os, "pwrite", counted)
    entries = [bytes([n]) * 100_000 for n in range(40)]
    flushed = FlushedPart()
    for some in (entries[:20], entries[20:]):
        job = FlushJob(7, flushed, some, array("I", [1] * 20), NO_TAGS)
        flushed = write_all(disk, [job])[0].flushed
        sync_all(disk, [job])
    assert sum(direct_bytes) > 0.99 * 4_000_000
    found = read_blocks(disk, 7, 0, flushed.file_bytes)
    assert [entry for block in found for entry in block.entries] == entries


def test_each_thread_has_a_buffer_of_its_own() -> None:
    with direct_io._buffer() as one, direct_io._buffer() as two:
        one[:3], two[:3] = b"one", b"two"
        assert bytes(one[:3]) == b"one"
    with direct_io._buffer() as again:
        assert len(again) == BUFFER_BYTES


# -- reading

SIZE = 3 * BUFFER_BYTES + 777


@pytest.fixture
def written(disk: OsDisk) -> tuple[OsFile, bytes]:
    file, data = disk.create("ledgers/1"), random.Random(7).randbytes(SIZE)
    file.pwritev([data], 0)
    return file, data


def drop_from_cache(file: OsFile) -> None:
    file.fdatasync()
    os.posix_fadvise(file._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("offset", [0, 1, BLOCK_BYTES, BUFFER_BYTES - 1, SIZE - LARGE_READ_BYTES])
@pytest.mark.parametrize("size", [LARGE_READ_BYTES, BUFFER_BYTES, BUFFER_BYTES + 1, 2 * SIZE])
@pytest.mark.parametrize("cached", [True, False])
def test_a_large_read_is_the_same_from_the_cache_and_around_it(
    written: tuple[OsFile, bytes], offset: int, size: int, cached: bool
) -> None:
    file, data = written
    if not cached:
        drop_from_cache(file)
    assert file.pread(size, offset) == data[offset : offset + size]


def test_only_what_is_not_in_the_cache_is_read_around_it(
    written: tuple[OsFile, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = written
    asked: list[tuple[int, int]] = []

    def noted(descriptor: int, size: int, offset: int) -> bytes:
        asked.append((size, offset))
        raise OSError(errno.EINVAL, "this file system cannot")

    monkeypatch.setattr(os_disk, "read_direct", noted)
    monkeypatch.setattr(OsFile, "_cached", lambda file, offset, size: cached)
    cached = True
    file.pread(BUFFER_BYTES, 5)
    cached = False
    file.pread(LARGE_READ_BYTES - 1, 5)
    file.pread(LARGEST_DIRECT_READ_BYTES + 1, 5)
    assert asked == []
    assert file.pread(BUFFER_BYTES, 5) == data[5 : 5 + BUFFER_BYTES], "read the usual way then"
    file.pread(LARGE_READ_BYTES, 5)
    file.pread(LARGEST_DIRECT_READ_BYTES, 5)
    assert asked == [(BUFFER_BYTES, 5), (LARGE_READ_BYTES, 5), (LARGEST_DIRECT_READ_BYTES, 5)]


def test_a_read_around_the_cache_that_comes_short_is_made_the_usual_way(
    written: tuple[OsFile, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = written
    monkeypatch.setattr(os_disk, "read_direct", lambda descriptor, size, offset: b"short")
    monkeypatch.setattr(OsFile, "_cached", lambda file, offset, size: False)
    assert file.pread(BUFFER_BYTES, 5) == data[5 : 5 + BUFFER_BYTES]


@pytest.mark.parametrize(
    ("answer", "cached"),
    [(1, True), (0, False), (BlockingIOError(), False), (OSError(errno.EOPNOTSUPP, "no"), True)],
)
def test_the_byte_in_the_middle_says_what_the_cache_has(
    file: OsFile, monkeypatch: pytest.MonkeyPatch, answer: int | OSError, cached: bool
) -> None:
    asked: list[tuple[int, int]] = []

    def preadv(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        asked.append((offset, flags))
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os_disk.os, "preadv", preadv)
    monkeypatch.setattr(os_disk, "_NOWAIT", 8)
    assert file._cached(5000, 1000) is cached
    assert asked == [(5500, 8)]


def test_where_nobody_can_say_what_is_in_the_cache_reads_go_through_it(
    written: tuple[OsFile, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = written
    assert file._cached(0, SIZE)
    monkeypatch.setattr(os_disk, "_NOWAIT", None)
    drop_from_cache(file)
    assert file._cached(0, SIZE)


@pytest.mark.parametrize("offset", [0, 7, BLOCK_BYTES, BUFFER_BYTES - 1])
@pytest.mark.parametrize("size", [1, BLOCK_BYTES, BUFFER_BYTES, 2 * BUFFER_BYTES + 5])
def test_what_is_read_around_the_cache_are_whole_blocks_and_no_more_than_is_needed(
    written: tuple[OsFile, bytes], monkeypatch: pytest.MonkeyPatch, offset: int, size: int
) -> None:
    file, data = written
    file.fdatasync()
    flags, asked, preadv = [os.O_RDWR], [], os.preadv

    def fake_fcntl(descriptor: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL:
            flags.append(argument)
        return flags[-1]

    def note(descriptor: int, buffers: list[memoryview], at: int) -> int:
        assert flags[-1] == os.O_RDWR | os.O_DIRECT
        asked.append((at, sum(map(len, buffers))))
        return preadv(descriptor, buffers, at)

    monkeypatch.setattr(direct_io.fcntl, "fcntl", fake_fcntl)
    monkeypatch.setattr(direct_io.os, "preadv", note)
    assert read_direct(file._descriptor, size, offset) == data[offset : offset + size]
    first = offset // BLOCK_BYTES * BLOCK_BYTES
    stop = -(-(offset + size) // BLOCK_BYTES) * BLOCK_BYTES
    assert asked == [(at, min(BUFFER_BYTES, stop - at)) for at in range(first, stop, BUFFER_BYTES)]
    assert flags[-1] == os.O_RDWR


def test_a_read_around_the_cache_leaves_the_descriptor_as_it_was(
    written: tuple[OsFile, bytes],
) -> None:
    file, data = written
    before = fcntl.fcntl(file._descriptor, fcntl.F_GETFL)
    file.fdatasync()
    assert read_direct(file._descriptor, 100, 5000) == data[5000:5100]
    with pytest.raises(OSError):
        read_direct(file._descriptor, 100, -BLOCK_BYTES)
    assert fcntl.fcntl(file._descriptor, fcntl.F_GETFL) == before
