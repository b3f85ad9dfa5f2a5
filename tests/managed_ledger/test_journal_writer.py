"""The journal's writer: the order of frames, and what a failed write leaves in the file."""

import errno
from typing import Any

import pytest
from faulty_disk import FaultyDisk, failing

from managed_ledger.errors import NoDescriptors, StorageFailed, StorageFull
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.embedded.journal_format import decode_header
from managed_ledger.storage.embedded.journal_scan import JournalScan
from managed_ledger.storage.embedded.journal_writer import (
    JournalWriter,
    create_journal,
    generations,
)
from managed_ledger.storage.embedded.room import RESERVE, SPARE_BYTES, Room
from managed_ledger.storage.group_commit import Group
from managed_ledger.storage.operations import Operation, Put, Remove, Sync

FIRST, SECOND = "journal/0000000001", "journal/0000000002"
NOBODY: Any = None  # no caller waits


def writer_on(disk: FaultyDisk) -> JournalWriter:
    return JournalWriter(disk, 1, create_journal(disk, 1), 0)


def group(*keys: str, makes_room: bool = False) -> Group:
    operations: list[Operation] = [
        Put(key, Versioned(b"v" * 100, 0), NOBODY, makes_room) for key in keys
    ]
    return Group(operations)


def bodies(disk: FaultyDisk, name: str = FIRST) -> list[bytes]:
    """The bodies of the good frames; the file must contain nothing else."""
    scan = JournalScan(name, int(name[-1]), bytes(disk.files[name]), is_last=True)
    found = list(scan)
    assert scan.torn is None
    return found


def synced(disk: FaultyDisk) -> int:
    return [what for what, _ in disk.operations].count("fdatasync")


def test_frames_follow_each_other_and_say_how_far_the_file_was_synced():
    disk = FaultyDisk()
    writer = writer_on(disk)
    ends = []
    for number, sync in enumerate((True, False, False, True, True)):
        writer.write(group(f"key{number}"), sync, rotate=False)
        ends.append(writer.size)
        assert writer.size == len(disk.files[FIRST])
    assert len(bodies(disk)) == 5
    data, said = bytes(disk.files[FIRST]), []
    for offset in [0, *ends[:-1]]:
        header = decode_header(data, offset)
        assert header is not None
        said.append(header.synced_to)
    assert said == [0, ends[0], ends[0], ends[0], ends[3]]
    assert synced(disk) == 3


def test_what_is_synced_already_is_not_synced_again():
    disk = FaultyDisk()
    writer = writer_on(disk)
    nothing = Group([Sync(NOBODY)])
    writer.write(nothing, sync=True, rotate=False)
    assert (synced(disk), disk.files[FIRST]) == (0, b"")
    writer.write(group("a"), sync=False, rotate=False)
    for _ in range(2):
        writer.write(nothing, sync=True, rotate=False)
    assert synced(disk) == 1
    assert len(bodies(disk)) == 1


def test_the_next_journal_begins_when_the_one_before_is_synced():
    disk = FaultyDisk()
    writer = writer_on(disk)
    writer.write(group("a"), sync=False, rotate=False)
    writer.write(group("b"), sync=True, rotate=True)
    assert (writer.generation, writer.name) == (2, SECOND)
    assert generations(disk) == [1, 2]
    steps = [step for step in disk.operations if step[0] in ("fdatasync", "create", "sync_folder")]
    assert steps[2:] == [
        ("fdatasync", FIRST),
        ("create", SECOND),
        ("sync_folder", "journal"),
        ("fdatasync", SECOND),
    ]
    assert len(bodies(disk)) == len(bodies(disk, SECOND)) == 1
    assert writer.size == len(disk.files[SECOND])
    assert disk.open_files == 1
    writer.close()
    assert disk.open_files == 0


def test_a_write_refused_for_lack_of_room_leaves_the_journal_as_it_was():
    disk = FaultyDisk()
    writer = writer_on(disk)
    writer.write(group("a"), sync=True, rotate=False)
    before = bytes(disk.files[FIRST])
    disk.fault = failing(errno.ENOSPC, ("write", "journal/"))
    with pytest.raises(StorageFull, match=FIRST):
        writer.write(group("refused"), sync=True, rotate=False)
    assert (bytes(disk.files[FIRST]), writer.size) == (before, len(before))
    assert disk.operations[-2:] == [("truncate", FIRST), ("fdatasync", FIRST)]
    disk.fault = lambda operation, name: None
    writer.write(group("b"), sync=True, rotate=False)
    assert len(bodies(disk)) == 2


@pytest.mark.parametrize("operation", ["truncate", "fdatasync"])
def test_a_refused_write_that_cannot_be_taken_back_is_a_failure(operation):
    disk = FaultyDisk()
    writer = writer_on(disk)

    def fault(what: str, name: str) -> None:
        if what == "write":
            raise OSError(errno.ENOSPC, "full", name)
        if what == operation:
            raise OSError(errno.ENOSPC, "cannot", name)

    disk.fault = fault
    with pytest.raises(StorageFailed, match="cannot"):
        writer.write(group("a"), sync=True, rotate=False)


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_a_disk_that_fails_is_not_written_to_again(operation):
    disk = FaultyDisk()
    writer = writer_on(disk)
    disk.fault = failing(errno.EIO, (operation, "journal/"))
    with pytest.raises(StorageFailed, match=FIRST):
        writer.write(group("a"), sync=True, rotate=False)
    assert "truncate" not in [what for what, _ in disk.operations]


@pytest.mark.parametrize("has_reserve", [False, True])
def test_what_makes_room_is_written_into_the_reserve(has_reserve):
    disk = FaultyDisk()
    disk.free = lambda: SPARE_BYTES
    writer = writer_on(disk)
    if has_reserve:
        writer.room.keep_reserve()

    def full(what: str, name: str) -> None:
        if what == "write" and (not has_reserve or RESERVE in disk.files):
            raise OSError(errno.ENOSPC, "full", name)

    disk.fault = full
    with pytest.raises(StorageFull):
        writer.write(group("a", "b"), sync=True, rotate=False)  # nothing needs to be written
    mixed = Group([*group("a", makes_room=True).operations, *group("b").operations])
    with pytest.raises(StorageFull):
        writer.write(mixed, sync=True, rotate=False)
    assert (RESERVE in disk.files) == has_reserve
    needed = Group([*group("a", makes_room=True).operations, Remove("b", NOBODY)])
    if has_reserve:
        writer.write(needed, sync=True, rotate=False)
        assert len(bodies(disk)) == 1
        assert RESERVE not in disk.files
    else:
        with pytest.raises(StorageFull):
            writer.write(needed, sync=True, rotate=False)


@pytest.mark.parametrize("operation", [("create", SECOND), ("sync_folder", "journal")])
@pytest.mark.parametrize("is_low", [False, True])
def test_a_new_journal_that_cannot_be_made_matters_unless_room_is_low(operation, is_low):
    disk = FaultyDisk()
    writer = writer_on(disk)
    writer.room = Room(disk)
    writer.room.is_low = is_low
    writer.write(group("a"), sync=True, rotate=False)
    disk.fault = failing(errno.ENOSPC, operation)
    if is_low:
        writer.write(group("b"), sync=True, rotate=True)
    else:
        with pytest.raises(StorageFull, match=SECOND):
            writer.write(group("b"), sync=True, rotate=True)
    assert len(bodies(disk)) == 1 + is_low
    assert generations(disk) == [1]
    assert disk.open_files == 1
    disk.fault = lambda what, name: None
    writer.write(group("c"), sync=True, rotate=True)
    assert len(bodies(disk, SECOND)) == 1


def test_half_a_frame_is_gone_for_good_before_it_is_written_anew_into_the_reserve():
    """Otherwise a power cut may leave the beginning of the first frame in a file with the length of
    the second.
    """
    disk = FaultyDisk()
    disk.free = lambda: SPARE_BYTES
    writer = writer_on(disk)
    writer.room.keep_reserve()
    writer.write(group("before"), sync=True, rotate=False)
    begin = len(disk.operations)

    def full(what: str, name: str) -> None:
        if what == "write" and RESERVE in disk.files:
            raise OSError(errno.ENOSPC, "full", name)

    disk.fault = full
    writer.write(group("key", makes_room=True), sync=True, rotate=False)
    of_the_journal = [what for what, name in disk.operations[begin:] if name == FIRST]
    assert of_the_journal == ["write", "truncate", "fdatasync", "write", "fdatasync"]
    assert len(bodies(disk)) == 2


def test_without_a_descriptor_the_next_journal_has_to_wait():
    disk = FaultyDisk()
    writer = writer_on(disk)
    disk.fault = failing(errno.EMFILE, ("create", SECOND))
    with pytest.raises(NoDescriptors):
        writer.write(group("b"), sync=True, rotate=True)
    assert writer.generation == 1


def test_other_files_in_the_folder_are_no_journals():
    disk = FaultyDisk(
        {"journal/0000000012": b"", "journal/x": b"", SECOND: b"", "journal/2.old": b""}
    )
    assert generations(disk) == [2, 12]
