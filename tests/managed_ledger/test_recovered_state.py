"""Recovery from a snapshot, from journals older and newer than it, and from the files."""

import errno
import logging

import pytest
from faulty_disk import FaultyDisk, failing

from managed_ledger.errors import CorruptStorage, NewerFormat
from managed_ledger.storage.backend import Versioned
from managed_ledger.storage.embedded import snapshot
from managed_ledger.storage.embedded.journal_format import encode_body, encode_frame
from managed_ledger.storage.embedded.journal_recovery import Recovery
from managed_ledger.storage.embedded.ledger_files import BLOCK_BYTES, FlushedPart, write_all
from managed_ledger.storage.embedded.snapshot import Snapshot
from managed_ledger.storage.engine_state import LedgerState
from managed_ledger.storage.operations import (
    DeleteLedger,
    Operation,
    Put,
    Remove,
    append_operation,
)

NOBODY = None  # no caller waits


def created(ledger_id: int) -> Put:
    return Put("list", Versioned(b"", 0), NOBODY, new_ledger_id=ledger_id)  # type: ignore[arg-type]


def deleted(ledger_id: int) -> DeleteLedger:
    return DeleteLedger(ledger_id, NOBODY)  # type: ignore[arg-type]


def appended(ledger_id: int, first: int, *entries: bytes) -> Operation:
    counts = [1] * len(entries)
    return append_operation(ledger_id, first, entries, counts, lambda error: None, b"")


def with_journals(disk: FaultyDisk, first: int, *journals: list[Operation]) -> FaultyDisk:
    for generation, operations in enumerate(journals, first):
        frame = encode_frame(encode_body(operations), generation, 0, 0)
        disk.files[f"journal/{generation:010d}"] = bytearray(b"".join(frame))
    return disk


def recovered(disk: FaultyDisk) -> Recovery:
    recovery = Recovery(disk)
    recovery.run().close()
    assert disk.open_files == 0
    return recovery


def flushed(disk: FaultyDisk, ledger_id: int, entries: list[bytes]) -> FlushedPart:
    state = LedgerState(ledger_id)
    state.tail.extend(entries, [1] * len(entries), b"")
    (result,) = write_all(disk, [state.flush_job(1 << 30)])
    return result.flushed


def test_a_journal_that_the_snapshot_has_overtaken_changes_nothing() -> None:
    """The last checkpoint was cut short before it removed the old journals. The snapshot already
    contains some records of the journals, or lacks what they delete later.
    """
    disk = FaultyDisk()
    kept = flushed(disk, 1, [b"a", b"b"])
    snapshot.write(disk, Snapshot(5, 9, [(1, kept)], [("key", Versioned(b"new", 4))]))
    disk.operations.clear()
    with_journals(
        disk,
        4,
        [Put("key", Versioned(b"old", 1), NOBODY), created(3), appended(3, 0, b"gone")],  # type: ignore[arg-type]
        [appended(1, 1, b"b", b"c"), appended(2, 0, b"of a ledger"), deleted(2)],
        [created(4), appended(4, 0, b"x"), deleted(4), created(11), appended(1, 3, b"d")],
    )
    found = recovered(disk)
    assert sorted(found.ledgers) == [1, 11]
    assert found.ledgers[1].tail.entries == [b"c", b"d"]
    assert (found.ledgers[1].queued_entries, found.ledgers[1].unflushed_entries) == (4, 2)
    assert found.items["key"] == Versioned(b"new", 4)
    assert found.next_ledger_id == 12
    assert found.first_generation == 5
    assert disk.names("journal") == ["journal/0000000005", "journal/0000000006"]
    synced = [name for operation, name in disk.operations if operation == "sync_folder"]
    assert synced == [snapshot.FOLDER, "journal"], "a crash may have come before that"


def test_removed_keys_are_gone_and_numbers_of_deleted_ledgers_are_used_up() -> None:
    disk = with_journals(
        FaultyDisk(),
        1,
        [created(0), created(1), Put("key", Versioned(b"", 0), NOBODY)],  # type: ignore[arg-type]
        [Remove("key", NOBODY), deleted(1)],  # type: ignore[arg-type]
    )
    found = recovered(disk)
    assert (list(found.items), sorted(found.ledgers)) == (["list"], [0])
    assert found.next_ledger_id == 2


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([appended(7, 0, b"x")], "has entries of ledger 7, which was never created"),
        (
            [created(7), appended(7, 0, b"x"), appended(7, 2, b"x")],
            "continues ledger 7 at entry 2, but entry 1 is missing",
        ),
    ],
)
def test_entries_without_a_beginning_are_corrupt_and_nothing_is_touched(
    operations: list[Operation], why: str
) -> None:
    disk = with_journals(FaultyDisk({"ledgers/99": b"left behind"}), 1, operations)
    before = disk.contents()
    with pytest.raises(CorruptStorage, match=f"journal/0000000001 {why}.*backup"):
        Recovery(disk).run()
    assert disk.contents() == before
    assert {operation for operation, _ in disk.operations} == {"open", "read"}
    assert disk.open_files == 0


def test_what_files_lack_is_known_and_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    block = b"x" * BLOCK_BYTES
    parts = [(ledger_id, flushed(disk, ledger_id, [block] * 3)) for ledger_id in (1, 2, 3)]
    snapshot.write(disk, Snapshot(1, 9, [(0, FlushedPart()), *parts], []))
    with_journals(disk, 1, [])
    del disk.files["ledgers/1"]
    del disk.files["ledgers/2"][-1:]
    with caplog.at_level(logging.ERROR):
        found = recovered(disk)
    assert {ledger_id: state.damaged for ledger_id, state in found.ledgers.items()} == {
        0: (),
        1: ((0, 2),),
        2: ((2, 2),),
        3: (),
    }
    assert "ledgers/1 is missing: entries 0 to 2 cannot be read" in caplog.text
    assert "ledgers/2 has " in caplog.text


# -- the format


def test_a_new_data_directory_says_its_format_before_it_holds_anything() -> None:
    disk = FaultyDisk()
    recovered(disk)
    assert bytes(disk.files[snapshot.NAME]).startswith(b"pybroker data directory, format 3\n")
    assert recovered(disk).items == {}


def test_a_directory_of_the_first_format_is_read_and_says_the_latest_from_then_on() -> None:
    disk = with_journals(FaultyDisk(), 3, [Put("b", Versioned(b"2", 0), NOBODY)])  # type: ignore[arg-type]
    snapshot.write(disk, Snapshot(3, 0, [], [("a", Versioned(b"1", 0))]))
    line = b"pybroker data directory, format 3\n"
    old = b"PBS1" + bytes(disk.files[snapshot.NAME]).removeprefix(line)
    disk.files[snapshot.NAME] = bytearray(old)
    for _ in range(2):
        assert {key: stored.value for key, stored in recovered(disk).items.items()} == {
            "a": b"1",
            "b": b"2",
        }
        assert bytes(disk.files[snapshot.NAME]).startswith(line)


def test_a_directory_of_journals_alone_says_its_format_too() -> None:
    disk = with_journals(FaultyDisk(), 1, [created(0), appended(0, 0, b"x")])
    for _ in range(2):
        assert recovered(disk).ledgers[0].tail.entries == [b"x"]
        assert bytes(disk.files[snapshot.NAME]).startswith(b"pybroker data directory, format 3\n")


@pytest.mark.parametrize("reads_as_before", [False, True])
def test_a_directory_of_a_later_format_is_refused_and_left_as_it_is(reads_as_before: bool) -> None:
    disk = with_journals(FaultyDisk(), 1, [created(0)])
    later = b"pybroker data directory, format 4\nand what nobody can read yet"
    if reads_as_before:  # later journals may still differ in meaning
        snapshot.write(disk, Snapshot(1, 0, [], []))
        later = bytes(disk.files[snapshot.NAME]).replace(b"format 3", b"format 4")
    disk.files[snapshot.NAME] = bytearray(later)
    before = disk.contents()
    with pytest.raises(NewerFormat):
        Recovery(disk).run()
    assert disk.contents() == before


def test_a_format_that_cannot_be_written_stops_the_start_and_closes_the_journal() -> None:
    disk = with_journals(FaultyDisk(), 1, [created(0)])
    disk.fault = failing(errno.ENOSPC, ("create", "metadata/"))
    with pytest.raises(OSError):
        Recovery(disk).run()
    assert disk.open_files == 0
    disk.fault = lambda operation, name: None
    assert 0 in recovered(disk).ledgers
