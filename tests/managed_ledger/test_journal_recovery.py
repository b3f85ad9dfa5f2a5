"""A journal cut at every byte, or with a flipped bit in every byte: torn or corrupt."""

import asyncio
import errno
import itertools
import logging
from collections.abc import Sequence

import pytest
from bare_ledgers import make_ledger
from faulty_disk import FaultyDisk

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.journal_format import HEADER_BYTES, SECTOR, encode_frame
from managed_ledger.storage.embedded.journal_recovery import Recovery
from managed_ledger.storage.embedded.journal_scan import JournalScan

JOURNAL = "journal/0000000001"
GROUPS = [[b"first"], [b"", b"second" * 60], [bytes(1500)], [b"\0" * 700 + b"x"], [b"last"]]
WRITTEN = [entry for group in GROUPS for entry in group]


async def write_journal(
    clock, groups: Sequence[Sequence[bytes]], disk: FaultyDisk | None = None, **options
) -> FaultyDisk:
    """Write one ledger, one commit per group; the process ends without a clean close."""
    disk = disk or FaultyDisk()
    backend = EmbeddedBackend(disk, clock, **options)
    await backend.open()
    ledger = await make_ledger(backend)
    first = 0
    for group in groups:
        done = asyncio.get_running_loop().create_future()
        backend.append(ledger, first, group, [1] * len(group), done.set_result)
        first += len(group)
        assert await done is None
        await backend.metadata.put("count", b"%d" % first)
    return disk


def recovered(disk: FaultyDisk) -> tuple[list[bytes], int]:
    """The entries of ledger 0, and the counter, which is written after each group."""
    recovery = Recovery(disk)
    recovery.run()
    entries = recovery.ledgers[0].tail.entries if recovery.ledgers else []
    count = recovery.items.get("count")
    return entries, int(count.value) if count else 0


@pytest.mark.slow
def test_a_journal_cut_at_any_byte_keeps_what_was_before_the_cut(run, clock):
    journal = run(write_journal(clock, GROUPS)).contents()[JOURNAL]
    kept = []
    for size in range(len(journal) + 1):
        entries, count = recovered(FaultyDisk({JOURNAL: journal[:size]}))
        assert entries == WRITTEN[: len(entries)]
        assert count <= len(entries)
        kept.append(len(entries))
    assert kept == sorted(kept)
    assert kept[0] == 0
    assert kept[-1] == len(WRITTEN)


def test_a_bit_flipped_in_any_byte_refuses_the_start_and_touches_nothing(run, clock):
    journal = run(write_journal(clock, GROUPS)).contents()[JOURNAL]
    for at in range(len(journal)):
        flipped = bytearray(journal)
        flipped[at] ^= 1 << at % 8
        damaged = FaultyDisk({JOURNAL: bytes(flipped)})
        with pytest.raises(CorruptStorage, match=JOURNAL):
            recovered(damaged)
        assert damaged.contents() == {JOURNAL: bytes(flipped)}


def test_a_refusal_names_the_file_the_offset_and_the_way_out(run, clock):
    async def scenario():
        files = (await write_journal(clock, GROUPS)).contents()
        flipped = bytearray(files[JOURNAL])
        flipped[HEADER_BYTES + 1] ^= 1
        with pytest.raises(CorruptStorage, match=r"0000000001 is corrupt at offset 0: .*--repair"):
            await EmbeddedBackend(FaultyDisk({JOURNAL: bytes(flipped)}), clock).open()

    run(scenario())


def test_a_torn_end_is_cut_off_durably_and_said_so(run, clock, caplog):
    async def scenario():
        files = (await write_journal(clock, GROUPS)).contents()
        disk = FaultyDisk({JOURNAL: files[JOURNAL][:-3]})
        with caplog.at_level(logging.WARNING):
            await EmbeddedBackend(disk, clock).open()
        assert "crash cut short" in caplog.text and "from a backup" in caplog.text
        at = disk.operations.index(("truncate", JOURNAL))
        assert disk.operations[at + 1] == ("fdatasync", JOURNAL)

    run(scenario())


def test_appends_go_on_behind_a_torn_end(run, clock):
    async def scenario():
        files = (await write_journal(clock, GROUPS)).contents()
        disk = FaultyDisk({JOURNAL: files[JOURNAL][:-3]})
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        await backend.metadata.put("count", b"99")
        assert recovered(FaultyDisk(disk.contents()))[1] == 99

    run(scenario())


@pytest.mark.parametrize("name", ["journal/1", "journal/README", "journal/\u0663", "ledgers/00"])
def test_files_with_other_names_are_let_alone(run, clock, name: str):
    disk = run(write_journal(clock, GROUPS))
    copy = disk.create(name)
    copy.pwritev([disk.contents()[JOURNAL][:-1]], 0)
    copy.fdatasync()
    assert recovered(disk) == (WRITTEN, len(WRITTEN))
    assert name in disk.contents()


def test_a_cut_journal_that_is_not_the_last_is_corrupt(run, clock):
    async def scenario():
        disk = FaultyDisk()
        snapshots = itertools.count()

        def full_after_the_start(operation: str, name: str) -> None:
            if (operation, name) == ("create", "metadata/snapshot.new") and next(snapshots):
                raise OSError(errno.ENOSPC, "full", name)

        disk.fault = full_after_the_start  # so that the old journal stays
        await write_journal(clock, GROUPS, disk, journal_max_bytes=1000)
        files = disk.contents()
        assert len(disk.names("journal")) == 2
        assert recovered(FaultyDisk(files))[0] == WRITTEN
        with pytest.raises(CorruptStorage, match=JOURNAL):
            recovered(FaultyDisk({**files, JOURNAL: files[JOURNAL][:-3]}))

    run(scenario())


def test_a_missing_journal_is_corrupt(run, clock):
    async def scenario():
        disk = await write_journal(clock, GROUPS)
        backend = EmbeddedBackend(disk := FaultyDisk(disk.contents()), clock)
        await backend.open()
        await backend.close()
        files = disk.contents()
        (journal,) = [name for name in files if name.startswith("journal/")]
        assert files.pop(journal) == b""
        with pytest.raises(CorruptStorage, match=f"{journal} is missing"):
            await EmbeddedBackend(FaultyDisk(files), clock).open()

    run(scenario())


# frames by hand: which sectors of the last write were lost

BODY = b"\x05" + b"body" * 600
ZEROS = b"\x05" + bytes(2048) + b"x" * 300
ENDS_IN_ZEROS = b"\x05" * 300 + bytes(1700)


def scan(data: bytes, is_last: bool = True) -> JournalScan:
    found = JournalScan("journal/7", 7, data, is_last)
    list(found)
    return found


def frames(*bodies: bytes, synced: bool = True) -> bytes:
    data = b""
    for body in bodies:
        data += b"".join(encode_frame([body], 7, len(data), len(data) if synced else 0))
    return data


def without(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


@pytest.mark.parametrize("body", [BODY, ZEROS, ENDS_IN_ZEROS])
@pytest.mark.parametrize("before", [1, 300, 440, 480, 900])
def test_a_frame_that_lost_any_of_its_sectors_is_torn(body, before):
    whole = frames(b"\x05" * before, body)
    start = len(frames(b"\x05" * before))
    for sector in range(start // 512 * 512, len(whole), 512):
        low, high = max(start, sector), min(len(whole), sector + 512)
        lost = without(whole, low, high)
        if lost == whole:
            continue
        torn = scan(lost).torn
        assert torn is not None
        assert torn.offset == start


def test_a_frame_of_which_only_zeros_are_left_is_torn():
    start = len(frames(b"a"))
    torn = scan(frames(b"a") + bytes(3000)).torn
    assert torn is not None
    assert (torn.offset, torn.lost_bytes) == (start, 3000)


def test_zeros_that_were_written_do_not_excuse_a_flipped_bit():
    data = bytearray(frames(ZEROS))
    data[-5] ^= 1
    with pytest.raises(CorruptStorage):
        scan(bytes(data))


def test_a_lost_sector_with_a_synced_frame_behind_it_is_corrupt():
    data = frames(BODY, b"\x05behind")
    with pytest.raises(CorruptStorage):
        scan(without(data, 512, 1024))


def test_a_lost_sector_with_only_unsynced_frames_behind_it_is_torn():
    """With relaxed durability several writes may be missing after a crash."""
    data = frames(BODY, b"\x05behind", synced=False)
    torn = scan(without(data, 512, 1024)).torn
    assert torn is not None
    assert torn.offset == 0


def test_frames_of_another_generation_or_offset_do_not_pass():
    stale = b"".join(encode_frame([b"\x05stale"], 6, 0, 0))
    with pytest.raises(CorruptStorage):
        scan(stale)
    moved = b"".join(encode_frame([b"\x05moved"], 7, 99, 99))
    with pytest.raises(CorruptStorage):
        scan(moved)


@pytest.mark.parametrize("offset", [SECTOR - HEADER_BYTES, SECTOR - HEADER_BYTES + 12, SECTOR])
@pytest.mark.parametrize("body", [BODY, bytes(2000)])
def test_a_flipped_bit_in_a_header_is_corrupt_wherever_the_header_lies(offset, body):
    before = b"x" * (offset - HEADER_BYTES - 1)
    data = bytearray(frames(before, body))
    for at in (offset + 5, offset + HEADER_BYTES - 1):
        flipped = bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
        with pytest.raises(CorruptStorage, match=f"offset {offset}"):
            scan(flipped)


def test_a_bad_header_at_the_very_end_of_the_file_is_corrupt():
    data = bytearray(frames(BODY, BODY))
    offset = len(data) // 2
    data[offset + 20] ^= 1
    with pytest.raises(CorruptStorage):
        scan(bytes(data[: offset + HEADER_BYTES]))
    torn = scan(bytes(data[: offset + HEADER_BYTES - 1])).torn
    assert torn is not None
    assert (torn.offset, torn.lost_bytes) == (offset, HEADER_BYTES - 1)
