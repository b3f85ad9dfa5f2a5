"""The parts of the embedded engine: room, snapshot, keys, a ledger's state, frames."""

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from faulty_disk import FaultyDisk, failing
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.errors import CorruptStorage, NewerFormat
from managed_ledger.storage.backend import LedgerSummary, Versioned
from managed_ledger.storage.embedded import journal_format, room, snapshot
from managed_ledger.storage.embedded.journal_format import (
    HEADER_BYTES,
    LARGE_BYTES,
    CreateLedgerRecord,
    DeleteLedgerRecord,
    PutRecord,
    RemoveRecord,
    decode_body,
    decode_header,
    encode_body,
    encode_frame,
)
from managed_ledger.storage.embedded.ledger_files import FlushedPart, write_all
from managed_ledger.storage.embedded.room import RESERVE, RESERVE_BYTES, SPARE_BYTES, Room
from managed_ledger.storage.embedded.snapshot import Snapshot
from managed_ledger.storage.engine_state import EngineState, LedgerState
from managed_ledger.storage.metadata_table import MetadataTable
from managed_ledger.storage.operations import (
    Append,
    DeleteLedger,
    Operation,
    Put,
    Remove,
    Sync,
    append_operation,
)

NOBODY: Any = None  # no caller waits


def append_of(ledger_id: int, first: int, entries: list[bytes], tag: bytes = b"") -> Append:
    counts = [first + n for n in range(len(entries))]
    return append_operation(ledger_id, first, entries, counts, lambda error: None, tag)


# -- room


def room_with(free_bytes: int | None) -> tuple[FaultyDisk, Room]:
    disk = FaultyDisk()
    disk.free = None if free_bytes is None else lambda: free_bytes
    return disk, Room(disk)


@pytest.mark.parametrize(
    ("free_bytes", "low", "out"),
    [
        (None, False, False),
        (SPARE_BYTES + 1000, False, False),
        (SPARE_BYTES + 999, True, False),
        (room.NEXT_TO_NOTHING_BYTES, True, False),
        (room.NEXT_TO_NOTHING_BYTES - 1, True, True),
        (0, True, True),
    ],
)
def test_room_is_low_where_what_is_wanted_and_some_more_does_not_fit(free_bytes, low, out):
    _, found = room_with(free_bytes)
    assert (found.is_low, found.is_out, found.lacks_reserve) == (False, False, False)
    found.look(1000)
    assert found.lacks_reserve == (free_bytes is not None)
    assert (found.is_low, found.is_out) == (low, out)


OPERATIONS: list[tuple[Operation, bool]] = [  # operation, whether it makes room
    (append_of(1, 0, [b"x"]), False),
    (Put("key", Versioned(b"", 0), NOBODY), False),
    (Put("key", Versioned(b"", 0), NOBODY, makes_room=True), True),
    (Remove("key", NOBODY), True),
    (DeleteLedger(1, NOBODY), True),
    (Sync(NOBODY), True),
]


@pytest.mark.parametrize(("operation", "makes_room"), OPERATIONS)
def test_messages_wait_for_room_and_where_it_is_out_all_that_makes_none(operation, makes_room):
    _, found = room_with(0)
    assert room.makes_room(operation) == makes_room
    assert found.must_wait(operation) == isinstance(operation, Append)
    found.look(0)
    assert found.must_wait(operation) != makes_room


@pytest.mark.parametrize(
    ("free_bytes", "kept"),
    [(None, False), (0, False), (SPARE_BYTES - 1, False), (SPARE_BYTES, True)],
)
def test_a_reserve_is_kept_where_there_is_room_for_it(free_bytes, kept):
    disk, found = room_with(free_bytes)
    found.keep_reserve()
    assert (RESERVE in disk.files) == kept
    if kept:
        assert len(disk.files[RESERVE]) == RESERVE_BYTES
        assert ("fdatasync", RESERVE) in disk.operations
        count = len(disk.operations)
        found.keep_reserve()
        assert len(disk.operations) == count
    assert disk.open_files == 0
    assert found.give_up_reserve() == kept
    assert RESERVE not in disk.files
    assert not found.give_up_reserve()


def test_no_reserve_is_taken_while_room_is_low():
    disk, found = room_with(SPARE_BYTES + 5)
    found.look(100)
    found.keep_reserve()
    assert RESERVE not in disk.files
    found.look(0)
    found.keep_reserve()
    assert RESERVE in disk.files


def test_a_reserve_of_an_earlier_life_is_the_reserve():
    disk, found = room_with(SPARE_BYTES)
    disk.files[RESERVE] = bytearray(RESERVE_BYTES)
    found.keep_reserve()
    assert disk.operations == []
    assert found.give_up_reserve()
    assert RESERVE not in disk.files


@pytest.mark.parametrize("left_bytes", [None, 0, RESERVE_BYTES - 1, RESERVE_BYTES])
def test_a_reserve_that_an_earlier_life_left_counts_only_if_it_is_whole(left_bytes):
    disk, found = room_with(SPARE_BYTES)
    if left_bytes is not None:
        disk.files[RESERVE] = bytearray(left_bytes)
    found.begin()
    whole = left_bytes == RESERVE_BYTES
    assert (RESERVE in disk.files, found.lacks_reserve) == (whole, not whole)
    assert disk.open_files == 0
    assert found.give_up_reserve() == whole


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_a_reserve_that_could_not_be_written_is_none(operation):
    disk, found = room_with(SPARE_BYTES)
    disk.fault = failing(errno.ENOSPC, (operation, "reserve/"))
    with pytest.raises(OSError, match="reserve"):
        found.keep_reserve()
    assert RESERVE not in disk.files
    assert disk.open_files == 0
    assert not found.give_up_reserve()


def test_a_reserve_that_is_given_up_while_another_thread_sees_to_it_is_not_counted_on():
    disk, found = room_with(SPARE_BYTES)
    found.keep_reserve()
    found.look(0)

    def keep_in_the_middle(operation: str, name: str) -> None:
        if operation == "unlink":
            found.keep_reserve()

    disk.fault = keep_in_the_middle
    assert found.give_up_reserve()
    assert found.lacks_reserve
    assert RESERVE not in disk.files


# -- the snapshot

SNAPSHOT = Snapshot(
    7, 12, [(3, FlushedPart(1, 2, 3, 4)), (11, FlushedPart())], [("k", Versioned(b"value", 5))]
)
SNAPSHOT_BODY = (
    "0700000000000000" "0c00000000000000" "0200000000000000" "0100000000000000"
    "0300000000000000" "0100000000000000" "0200000000000000" "0300000000000000" "0400000000000000"
    "0b00000000000000" "0000000000000000" "0000000000000000" "0000000000000000" "0000000000000000"
    "0500000000000000" "01000000" "05000000" "6b" "76616c7565"
)  # fmt: skip


def test_the_bytes_of_a_snapshot_stay_what_they_are():
    body = bytes.fromhex(SNAPSHOT_BODY)
    header = crc32c(body).to_bytes(4, "little") + len(body).to_bytes(8, "little")
    data = b"pybroker data directory, format 3\n" + header + body
    assert snapshot.encode(SNAPSHOT) == data
    assert snapshot.decode(data) == SNAPSHOT
    for size in range(len(data)):
        with pytest.raises(CorruptStorage):
            snapshot.decode(data[:size])
    with pytest.raises(CorruptStorage):
        snapshot.decode(data + b"x")
    for at in (0, 5, 9, 20, 36, 44, len(data) - 1):
        with pytest.raises(CorruptStorage):
            snapshot.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_a_snapshot_of_the_first_format_is_read():
    """The first format had no line that states the format."""
    body = bytes.fromhex(SNAPSHOT_BODY)
    header = b"PBS1" + crc32c(body).to_bytes(4, "little") + len(body).to_bytes(8, "little")
    assert snapshot.decode(header + body) == replace(SNAPSHOT, format=1)


@pytest.mark.parametrize("found", [0, 1])
def test_a_format_that_no_version_wrote_is_damage(found):
    data = snapshot.encode(SNAPSHOT).replace(b"format 3", b"format %d" % found)
    with pytest.raises(CorruptStorage):
        snapshot.decode(data)


def test_a_later_format_is_refused_whatever_follows():
    with pytest.raises(NewerFormat, match=r"has format 10, .*formats up to 3: start the later"):
        snapshot.decode(b"pybroker data directory, format 10\nin a way of its own")


def test_a_snapshot_is_on_the_disk_before_it_takes_the_place_of_the_old_one():
    disk = FaultyDisk({snapshot.NEW_NAME: b"of a crash" * 1000})
    assert snapshot.read(disk) is None
    snapshot.write(disk, SNAPSHOT)
    assert snapshot.read(disk) == SNAPSHOT
    assert [what for what, _ in disk.operations if what != "open"] == [
        "unlink",
        "create",
        "write",
        "fdatasync",
        "rename",
        "sync_folder",
        "read",
    ]
    assert list(disk.files) == [snapshot.NAME]
    assert disk.open_files == 0


# -- keys


def test_who_watches_hears_of_what_was_written_or_deleted_below_a_prefix():
    async def scenario() -> None:
        submitted: list[Put | Remove] = []
        table = MetadataTable(submitted.append)
        heard: list[str] = []
        table.watch("a/", heard.append)
        table.put("a/1", b"x")
        table.put("b/1", b"x")
        table.delete("a/2")
        assert heard == []
        for mutation in submitted:
            table.apply(mutation)
        assert heard == ["a/1", "a/2"]
        assert not table._queued, "it would keep each key for ever"
        assert table.items() == [("a/1", Versioned(b"x", 0)), ("b/1", Versioned(b"x", 0))]

    asyncio.run(scenario())


def test_who_watches_and_fails_keeps_nothing_from_being_written_or_heard():
    async def scenario() -> None:
        mistakes: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: mistakes.append(str(context["exception"])))
        submitted: list[Put | Remove] = []
        table = MetadataTable(submitted.append)
        heard: list[str] = []

        def mistaken(key: str) -> None:
            raise ValueError(key)

        table.watch("a/", mistaken)
        table.watch("a/", heard.append)
        table.put("a/1", b"x")
        table.apply(submitted[0])
        assert (heard, mistakes) == (["a/1"], ["a/1"])

    asyncio.run(scenario())


@pytest.mark.parametrize("last", ["\U0010ffff", "\ud7ff", "z"])
def test_the_keys_of_a_prefix_are_all_that_start_so(last):
    prefix = f"topics/{last}"
    inside = [prefix, f"{prefix}\0", f"{prefix}\U0010ffff", f"{prefix}\U0010ffff\U0010ffffx"]
    outside = ["topics", "topics/", "topics0", "topicsx"]
    table = MetadataTable(lambda mutation: None)
    table.load((key, Versioned(b"", 0)) for key in [*inside, *outside])
    assert table.keys(prefix) == inside
    assert table.keys("topics/") == ["topics/", *inside]
    assert table.keys("") == sorted([*inside, *outside])


def test_versions_count_on_from_what_was_loaded_and_from_what_is_queued():
    async def scenario() -> None:
        submitted: list[Put | Remove] = []
        table = MetadataTable(submitted.append)
        table.load([("k", Versioned(b"old", 4))])
        table.put("k", b"1", 4)
        table.put("k", b"2")
        first, second = submitted
        assert isinstance(first, Put)
        assert isinstance(second, Put)
        assert (first.stored.version, second.stored.version) == (5, 6)
        table.apply(first)  # the second is still in flight
        table.put("k", b"3", 6)
        table.withdraw(second)
        assert isinstance(submitted[2], Put)
        assert submitted[2].stored.version == 7
        table.withdraw(submitted[2])
        table.put("k", b"4", 5)
        assert isinstance(submitted[3], Put)
        assert submitted[3].stored.version == 6

    asyncio.run(scenario())


# -- a ledger's state


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.integers(0, 40), min_size=1, max_size=4)),
            st.tuples(st.just("flush"), st.integers(1, 60)),
            st.tuples(st.just("evict"), st.just(0)),
        ),
        max_size=15,
    )
)
def test_a_ledger_counts_the_same_wherever_its_entries_are(steps):
    disk, state, written = FaultyDisk(), LedgerState(5), list[bytes]()
    evictable = evicted = 0
    for what, how_much in steps:
        if what == "append":
            entries = [bytes([len(written) + n]) * size for n, size in enumerate(how_much)]
            tag = b"t" if len(entries) % 2 else b""
            state.tail.extend(entries, [len(written) + n for n in range(len(entries))], tag)
            written += entries
        elif what == "flush":
            job = state.flush_job(how_much)
            first = state.flushed.entries
            assert job.entries == written[first : first + len(job.entries)]
            assert job.message_counts.tolist() == list(range(first, first + len(job.entries)))
            if job.entries:
                state.note_flushed(write_all(disk, [job])[0])
        else:
            evicted, evictable = evictable, state.flushed.entries
            state.evict()
        assert state.unflushed_entries == len(written) - state.flushed.entries
        assert state.tail.first_entry_id == evicted
        messages = sum(range(len(written)))
        assert state.summary() == LedgerSummary(len(written) - 1, sum(map(len, written)), messages)


def test_a_ledger_found_in_its_file_goes_on_behind_it():
    state = LedgerState(5, FlushedPart(3, 100, 40, 9))
    assert state.index is None  # not loaded yet
    assert state.summary() == LedgerSummary(2, 40, 9)
    assert (state.queued_entries, state.unflushed_entries) == (3, 0)
    state.tail.extend([b"ab"], [4])
    assert state.summary() == LedgerSummary(3, 42, 13)
    assert LedgerState(5).index is not None
    assert not (state.deleted or state.fenced)


@pytest.mark.parametrize(
    ("found", "known"),
    [
        ([(4, 4), (0, 1)], ((0, 1), (4, 4))),
        ([(4, 4), (4, 4)], ((4, 4),)),
        ([(4, 4), (6, 7), (5, 5)], ((4, 7),)),
        ([(4, 4), (6, 7), (9, 9), (5, 6)], ((4, 7), (9, 9))),
        ([(2, 8), (3, 4)], ((2, 8),)),
        ([(3, 4), (2, 8)], ((2, 8),)),
        ([(3, 4), (6, 6), (0, 1)], ((0, 1), (3, 4), (6, 6))),
    ],
)
def test_what_is_damaged_is_known_as_stretches_apart(found, known):
    state = LedgerState(5)
    for span in found:
        state.note_damage(*span)
    assert state.damaged == known


def test_operations_take_effect_and_withdrawn_ones_leave_their_numbers_free():
    state = EngineState(MetadataTable(lambda operation: None))
    state.apply(Put("list", Versioned(b"", 0), NOBODY, new_ledger_id=4))
    state.apply(Remove("list", NOBODY))
    ledger = state.ledgers[4]
    state.apply(append_of(4, 0, [b"a", b"b"], b"tag"))
    assert ledger.tail.entries == [b"a", b"b"]
    assert list(ledger.tail.tags) == [(0, 1, b"tag")]
    ledger.queued_entries = 5
    state.withdraw(append_of(4, 2, [b"c"]))
    assert ledger.queued_entries == 2
    state.apply(Put("k", Versioned(b"v", 0), NOBODY))
    assert state.table.get("k") == Versioned(b"v", 0)
    state.apply(Remove("k", NOBODY))
    assert state.table.get("k") is None
    state.next_ledger_id = 9
    assert state.snapshot(3) == Snapshot(3, 9, [(4, FlushedPart())], [])
    state.apply(DeleteLedger(4, NOBODY))
    state.apply(DeleteLedger(4, NOBODY))
    assert (state.ledgers, state.doomed, ledger.deleted) == ({}, [4], True)
    state.apply(append_of(4, 2, [b"late"]))
    state.withdraw(append_of(4, 2, [b"late"]))
    assert ledger.tail.entries == [b"a", b"b"]


# -- frames

MUTATIONS: list[Operation] = [
    Put("kü", Versioned(b"value", 3), NOBODY),
    Remove("kü", NOBODY),
    Put("l", Versioned(b"", 1), NOBODY, new_ledger_id=9),
    DeleteLedger(8, NOBODY),
    Sync(NOBODY),
    Put("", Versioned(b"", 0), NOBODY),
]
MUTATION_BYTES = (
    "02" "0300000000000000" "03000000" "05000000" "6bc3bc" "76616c7565"
    "03" "03000000" "6bc3bc"
    "04" "0900000000000000"
    "02" "0100000000000000" "01000000" "00000000" "6c"
    "05" "0800000000000000"
    "02" "0000000000000000" "00000000" "00000000"
)  # fmt: skip
APPEND_BYTES = (
    "01" "0500000000000000" "0700000000000000" "02000000"
    "0100000000000000" "0700000008000000" "61"
    "06" "0500000000000000" "0900000000000000" "01000000" "0300" "746167"
    "02000000" "09000000" "6262"
)  # fmt: skip


@pytest.mark.parametrize("kind", [0, 7, 255])
def test_a_record_of_a_kind_that_is_not_known_is_no_other_one(kind):
    body = bytes([kind]) + (3).to_bytes(8, "little")
    with pytest.raises(CorruptStorage, match=f"kind {kind}, .* run the version that wrote it"):
        list(decode_body(body))


def test_the_bytes_of_records_stay_what_they_are():
    assert b"".join(encode_body(MUTATIONS)).hex() == MUTATION_BYTES
    assert list(decode_body(bytes.fromhex(MUTATION_BYTES))) == [
        PutRecord("kü", Versioned(b"value", 3)),
        RemoveRecord("kü"),
        CreateLedgerRecord(9),
        PutRecord("l", Versioned(b"", 1)),
        DeleteLedgerRecord(8),
        PutRecord("", Versioned(b"", 0)),
    ]
    appends = [append_of(5, 7, [b"a", b""]), append_of(5, 9, [b"bb"], b"tag")]
    assert b"".join(encode_body(appends)).hex() == APPEND_BYTES
    plain, tagged = decode_body(bytes.fromhex(APPEND_BYTES))
    assert isinstance(plain, journal_format.EntriesRecord)
    assert (plain.first_entry_id, plain.entries, plain.tag) == (7, [b"a", b""], b"")
    assert plain.message_counts.tolist() == [7, 8]
    assert isinstance(tagged, journal_format.EntriesRecord)
    assert (tagged.ledger_id, tagged.entries, tagged.tag) == (5, [b"bb"], b"tag")


@pytest.mark.parametrize(("smaller", "parts"), [(0, 4), (1, 1)])
def test_entries_that_are_large_on_average_are_not_copied_into_the_body(smaller, parts):
    sizes = (LARGE_BYTES, LARGE_BYTES - smaller, LARGE_BYTES)
    body = encode_body([append_of(5, 0, [bytes(size) for size in sizes])])
    assert len(body) == parts


def test_the_bytes_of_a_frame_stay_what_they_are():
    frame = b"".join(encode_frame([b"bo", b"dy"], 3, 1000, 900))
    head = b"PBJ1" + bytes.fromhex("03000000e80300000000000084030000000000000400000000000000")
    head += crc32c(b"body").to_bytes(4, "little")
    assert frame == head + crc32c(head).to_bytes(4, "little") + b"body" + b"\xa5"
    data = bytes(1000) + frame
    header = decode_header(data, 1000)
    assert header is not None
    assert (header.generation, header.offset, header.synced_to) == (3, 1000, 900)
    assert (header.body_start, header.body_bytes, header.end) == (1040, 4, len(data))
    assert decode_header(data[: 1000 + HEADER_BYTES - 1], 1000) is None
    assert decode_header(data[: 1000 + HEADER_BYTES], 1000) is not None
    assert decode_header(bytes(999) + frame, 999) is None  # the frame states another offset
    for at in range(1000, 1000 + HEADER_BYTES):
        flipped = bytearray(data)
        flipped[at] ^= 1
        assert decode_header(bytes(flipped), 1000) is None


def test_a_frame_counts_the_sectors_of_its_body_that_are_rightly_zeros():
    """Sectors begin at multiples of 512 in the file; the end byte is in the last sector."""
    data = bytes(1000) + b"".join(encode_frame([bytes(2000)], 3, 1000, 0))
    header = decode_header(data, 1000)
    assert header is not None
    assert header.zero_sectors == 2
