"""Cursors: all kinds of acknowledgements, and their state after a restart."""

import asyncio
from typing import Any

import pytest
from bare_ledgers import acknowledged_behind

from managed_ledger.ack_set import AckSet
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import CursorRecord, cursors_prefix
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.memory import MemoryBackend


async def log_with_cursor(factory, count: int, start: Position | None = EARLIEST):
    ledger = await factory.open("log")
    cursor = await ledger.open_cursor("sub", start)
    positions = await asyncio.gather(*[ledger.append_one(b"%d" % n) for n in range(count)])
    return ledger, cursor, positions


def test_a_new_cursor_starts_at_the_end_unless_told_otherwise(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=3) as factory:
            ledger, earliest, positions = await log_with_cursor(factory, 7)
            latest = await ledger.open_cursor("latest")
            middle = await ledger.open_cursor("middle", positions[2])
            beyond = await ledger.open_cursor("beyond", LATEST)
            backlogs = [
                c.backlog(ledger.last_confirmed) for c in (earliest, latest, middle, beyond)
            ]
            assert backlogs == [7, 0, 4, 0]
            assert await ledger.open_cursor("sub") is earliest

    run(scenario())


def test_the_mark_delete_position_moves_over_what_was_acknowledged_behind_it(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=4) as factory:
            ledger, cursor, positions = await log_with_cursor(factory, 10)
            for n in (1, 2, 3, 4, 5, 7):
                assert cursor.delete(*positions[n])
                assert not cursor.delete(*positions[n])
            assert cursor.mark_delete_position < positions[0]
            assert (acknowledged_behind(cursor), cursor.unacked_ranges_count) == (6, 3)
            assert cursor.delete(*positions[0])
            assert cursor.mark_delete_position == positions[5]
            assert (cursor.unacked_ranges_count, acknowledged_behind(cursor)) == (1, 1)
            assert cursor.backlog(ledger.last_confirmed) == 3
            assert [cursor.is_deleted(p) for p in positions[5:9]] == [True, False, True, False]
            assert not cursor.delete(*positions[3])

    run(scenario())


def test_entries_that_do_not_exist_cannot_be_acknowledged(start, run):
    async def scenario():
        async with start() as factory:
            ledger, cursor, positions = await log_with_cursor(factory, 2)
            assert not cursor.delete(*positions[-1].after)
            assert not cursor.delete(10**9, 0)
            assert not cursor.delete_batch_indexes(positions[-1].after, 0, 4)
            cursor.delete_range(positions[0].ledger_id, 1, 10**12)
            assert acknowledged_behind(cursor) == 1
            cursor.mark_delete(LATEST)
            assert cursor.mark_delete_position == ledger.last_confirmed

    run(scenario())


def test_ranges_within_a_window_include_what_the_mark_covers(start, run):
    async def scenario():
        async with start() as factory:
            _, cursor, positions = await log_with_cursor(factory, 12)
            id_ = positions[0].ledger_id
            cursor.mark_delete(positions[2])
            cursor.delete_range(id_, 5, 6)
            cursor.delete(id_, 9)
            assert cursor.deleted_within(id_, 0, 11) == [(0, 2), (5, 6), (9, 9)]
            assert cursor.deleted_within(id_, 1, 5) == [(1, 2), (5, 5)]
            assert cursor.deleted_within(id_, 7, 8) == []
            assert cursor.deleted_within(id_, 0, 1) == [(0, 1)]
            assert cursor.deleted_within(id_ + 1, 0, 5) == []

    run(scenario())


def test_batch_indexes_are_anded_and_the_last_one_deletes_the_entry(start, run):
    async def scenario():
        async with start() as factory:
            _, cursor, (first, second) = await log_with_cursor(factory, 2)
            assert cursor.unacked_indexes(first) is None
            assert not cursor.delete_batch_indexes(first, 0b1110, 4)
            assert not cursor.delete_batch_indexes(first, 0b0111, 4)
            assert cursor.unacked_indexes(first) == 0b0110
            assert cursor.delete_batch_indexes(first, 0b1001, 4)
            assert cursor.mark_delete_position == first
            assert cursor.unacked_indexes(first) is None
            assert not cursor.delete_batch_indexes(first, 0, 4)
            assert cursor.delete_batch_indexes(second, 0, 4)

    run(scenario())


def test_a_cumulative_ack_inside_a_batch_marks_the_entry_before_and_never_rolls_back(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=2) as factory:
            _, cursor, positions = await log_with_cursor(factory, 4)
            assert cursor.mark_delete(positions[2], 0b1100, 4)
            assert cursor.mark_delete_position == positions[1]
            assert cursor.unacked_indexes(positions[2]) == 0b1100
            assert not cursor.mark_delete(positions[2], 0b1110, 4)
            assert cursor.unacked_indexes(positions[2]) == 0b1100
            assert cursor.mark_delete(positions[2], 0b1000, 4)
            assert cursor.mark_delete(positions[2], 0, 4)
            assert cursor.mark_delete_position == positions[2]
            assert cursor.unacked_indexes(positions[2]) is None
            assert not cursor.mark_delete(positions[1])

    run(scenario())


def test_a_cumulative_ack_forgets_what_it_covers(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=4) as factory:
            _, cursor, positions = await log_with_cursor(factory, 12)
            for n in (2, 5, 9):
                cursor.delete(*positions[n])
            cursor.delete_batch_indexes(positions[3], 0b10, 2)
            cursor.delete_batch_indexes(positions[7], 0b10, 2)
            assert cursor.mark_delete(positions[4])
            assert cursor.mark_delete_position == positions[5]
            assert acknowledged_behind(cursor) == 1
            assert cursor.unacked_indexes(positions[3]) is None
            assert cursor.unacked_indexes(positions[7]) == 0b10

    run(scenario())


def test_a_reset_makes_the_entry_at_that_position_the_next(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=4) as factory:
            ledger, cursor, positions = await log_with_cursor(factory, 10)
            cursor.mark_delete(positions[7])
            cursor.delete(*positions[9])
            for target, next_one in ((positions[2], 2), (positions[4], 4), (EARLIEST, 0)):
                cursor.reset(target)
                mark = cursor.mark_delete_position
                assert ledger.next_position(mark) == positions[next_one]
                assert cursor.backlog(ledger.last_confirmed) == 10 - next_one
            cursor.reset(LATEST)
            assert cursor.backlog(ledger.last_confirmed) == 0
            assert acknowledged_behind(cursor) == 0

    run(scenario())


def test_everything_acknowledged_is_found_again_after_a_clean_close(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=4) as factory:
            ledger, cursor, positions = await log_with_cursor(factory, 12)
            cursor.mark_delete(positions[1])
            cursor.delete(*positions[3])
            cursor.delete(*positions[8])
            cursor.delete_batch_indexes(positions[5], 0b1011, 4)
        async with start() as factory:
            ledger = await factory.open("log")
            cursor = ledger.cursors["sub"]
            assert cursor.mark_delete_position == positions[1]
            deleted = [n for n, position in enumerate(positions) if cursor.is_deleted(position)]
            assert deleted == [0, 1, 3, 8]
            assert cursor.unacked_indexes(positions[5]) == 0b1011
            assert cursor.backlog(ledger.last_confirmed) == 8

    run(scenario())


def test_no_number_of_holes_is_too_many_to_remember(start, run, append_at_once):
    """Twenty thousand ranges survive a restart; none is silently dropped."""

    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            cursor = await ledger.open_cursor("sub", EARLIEST)
            for _ in range(40_000 // append_at_once):
                done = asyncio.get_running_loop().create_future()
                entries = [b""] * append_at_once
                ledger.append(
                    entries, [1] * len(entries), lambda first, _, tell=done.set_result: tell(first)
                )
                id_ = (await done).ledger_id
            for entry_id in range(1, 40_000, 2):
                cursor.delete(id_, entry_id)
        async with start() as factory:
            cursor = (await factory.open("log")).cursors["sub"]
            assert cursor.unacked_ranges_count == 20_000
            assert not cursor.is_deleted(Position(id_, 39_998))
            assert cursor.is_deleted(Position(id_, 39_999))

    run(scenario())


def test_properties_and_unusual_names_survive(start, run):
    async def scenario():
        name = "tenant/ns/sub/ü %2F:"
        async with start() as factory:
            ledger = await factory.open("log")
            await ledger.open_cursor(name, EARLIEST, {"k": "v"})
            await (await factory.open("log/tenant")).open_cursor("other")
        async with start() as factory:
            ledger = await factory.open("log")
            assert list(ledger.cursors) == [name]
            assert ledger.cursors[name].properties == {"k": "v"}

    run(scenario())


def test_a_deleted_cursor_does_not_come_back(start, run):
    async def scenario():
        async with start() as factory:
            ledger, cursor, positions = await log_with_cursor(factory, 3)
            cursor.delete(*positions[0])
            deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
            await asyncio.sleep(0)
            cursor.delete(*positions[1])
            await cursor.flush()
            await ledger.flush_cursors()
            await deleting
            await ledger.delete_cursor("sub")
        async with start() as factory:
            assert dict((await factory.open("log")).cursors) == {}

    run(scenario())


def test_a_non_durable_cursor_is_gone_after_a_restart(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            cursor = ledger.new_non_durable_cursor("reader", EARLIEST)
            position = await ledger.append_one(b"a")
            assert cursor.delete(*position)
            assert not cursor.durable
            assert list(ledger.cursors) == ["reader"]
        async with start() as factory:
            assert dict((await factory.open("log")).cursors) == {}

    run(scenario())


@pytest.mark.parametrize("still_waiting", [True, False])
def test_a_write_that_failed_for_lack_of_space_is_made_again(run, clock, still_waiting):
    async def scenario():
        ledger, positions, full, marks_after_a_restart = await on_a_disk_that_fills_up(clock)
        cursor = await ledger.open_cursor("sub", EARLIEST)
        cursor.delete(*positions[0])
        full(True)
        flush, write = asyncio.ensure_future(cursor.flush()), cursor.write()
        if not still_waiting:
            flush.cancel()
        await asyncio.wait([flush, write])
        with pytest.raises(StorageFull if still_waiting else asyncio.CancelledError):
            flush.result()
        full(False)
        await cursor.flush()
        assert await marks_after_a_restart() == {"sub": positions[0]}

    run(scenario())


def test_acknowledgements_are_written_though_recovery_had_moved_the_cursor(clock) -> None:
    """The move marked the cursor dirty without a callback, so later changes had none either."""

    async def scenario() -> None:
        backend = MemoryBackend()
        await backend.open()
        first = ManagedLedgerFactory(backend, clock)
        await (await first.open("x")).open_cursor("s", EARLIEST)
        await first.close()  # nothing was appended: the next opening drops the empty ledger
        config = ManagedLedgerConfig(cursor_flush_interval_ms=0)
        factory = ManagedLedgerFactory(backend, clock, config)
        ledger = await factory.open("x")
        position = await ledger.append_one(b"a")
        ledger.cursors["s"].mark_delete(position)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert _stored_mark(backend) == position

    asyncio.run(scenario())


def _stored_mark(backend: MemoryBackend) -> Position:
    stored = backend.metadata.get(next(iter(backend.metadata.keys(cursors_prefix("x")))))
    assert stored is not None
    return CursorRecord.decode(stored.value, "s").mark_delete_position


async def on_a_disk_that_fills_up(clock):
    """A log with three entries on a disk; `full(True)` fails all writes to the journal."""
    import errno

    from faulty_disk import FaultyDisk, failing

    from managed_ledger.storage.embedded.journal import EmbeddedBackend

    disk = FaultyDisk()
    backend = EmbeddedBackend(disk, clock)
    await backend.open()
    ledger = await ManagedLedgerFactory(backend, clock).open("log")
    positions = [await ledger.append_one(b"x") for _ in range(3)]

    def full(is_full: bool) -> None:
        faulty = failing(errno.ENOSPC, ("write", "journal/"))
        disk.fault = faulty if is_full else lambda operation, name: None

    async def marks_after_a_restart() -> dict[str, Position]:
        restarted = EmbeddedBackend(FaultyDisk(disk.contents()), clock)
        await restarted.open()
        again = await ManagedLedgerFactory(restarted, clock).open("log")
        return {name: cursor.mark_delete_position for name, cursor in again.cursors.items()}

    return ledger, positions, full, marks_after_a_restart


def test_a_cursor_that_could_not_be_written_is_not_there_and_can_be_made_later(run, clock):
    async def scenario():
        ledger, positions, full, marks_after_a_restart = await on_a_disk_that_fills_up(clock)
        full(True)
        with pytest.raises(StorageFull):
            await ledger.open_cursor("sub", EARLIEST)
        assert dict(ledger.cursors) == {}
        full(False)
        await ledger.flush_cursors()
        assert await marks_after_a_restart() == {}
        cursor = await ledger.open_cursor("sub", positions[0])
        assert ledger.cursors["sub"] is cursor
        assert await marks_after_a_restart() == {"sub": positions[0]}

    run(scenario())


def test_a_cursor_that_could_not_be_deleted_is_still_there_and_still_written(run, clock):
    async def scenario():
        ledger, positions, full, marks_after_a_restart = await on_a_disk_that_fills_up(clock)
        cursor = await ledger.open_cursor("sub", EARLIEST)
        cursor.delete(*positions[0])
        full(True)
        with pytest.raises(StorageFull):
            await ledger.delete_cursor("sub")
        full(False)
        assert ledger.cursors["sub"] is cursor
        cursor.delete(*positions[1])
        await cursor.flush()
        assert await marks_after_a_restart() == {"sub": positions[1]}
        await ledger.delete_cursor("sub")
        assert await marks_after_a_restart() == {}

    run(scenario())


@pytest.mark.parametrize("end", ["close", "delete"])
def test_nothing_is_written_of_a_cursor_whose_log_has_ended(start, run, end):
    async def scenario():
        async with start() as factory:
            ledger, cursor, positions = await log_with_cursor(factory, 3)
            cursor.delete(*positions[0])
            if end == "close":
                await ledger.close()
            else:
                await factory.delete("log")
            cursor.delete(*positions[1])
            await cursor.flush()
            anew = await factory.open("log")
            marks = [c.mark_delete_position for c in anew.cursors.values()]
            assert marks == ([positions[0]] if end == "close" else [])

    run(scenario())


def test_a_flush_waits_for_the_write_that_is_under_way(start, run):
    async def scenario():
        async with start() as factory:
            _, cursor, positions = await log_with_cursor(factory, 3)
            cursor.delete(*positions[0])
            write = cursor.write()
            assert write is not None
            assert cursor.write() is write
            await cursor.flush()
            assert write.done()
            assert cursor.write() is None  # nothing is dirty or in flight

    run(scenario())


def cursor_with_store(entries: int) -> tuple[ManagedCursor, list[tuple[CursorRecord, Any]]]:
    """A cursor, and the records that it writes, each with the future that makes it durable."""
    index = LedgerIndex([], 0)
    index.grow(entries, entries)
    writes: list[tuple[CursorRecord, Any]] = []

    def store(name: str, value: bytes) -> Any:
        done = asyncio.get_running_loop().create_future()
        writes.append((CursorRecord.decode(value, name), done))
        return done

    return ManagedCursor("sub", index, Position(0, -1), {}, store=store), writes


def test_what_the_mark_has_passed_is_not_written_down(run):
    async def scenario():
        cursor, writes = cursor_with_store(10)
        for entry_id in (1, 2, 3, 6):
            cursor.delete(0, entry_id)
        cursor.write()
        cursor.delete(0, 0)
        cursor.write()
        for entry_id in (4, 5):
            cursor.delete(0, entry_id)
        cursor.write()
        marks = [record.mark_delete_position.entry_id for record, _ in writes]
        assert marks == [-1, 3, 6]
        acked = [
            {
                ledger_id: AckSet.decode(value).runs(0, 9)
                for ledger_id, value in record.acked.items()
            }
            for record, _ in writes
        ]
        assert acked == [{0: [(1, 3), (6, 6)]}, {0: [(6, 6)]}, {}]

    run(scenario())


def test_ranges_that_the_mark_has_passed_do_not_count(run):
    async def scenario():
        for count in (lambda cursor: cursor.unacked_ranges_count, acknowledged_behind):
            cursor, _ = cursor_with_store(10)
            for entry_id in (1, 2, 3, 6, 0):
                cursor.delete(0, entry_id)
            assert count(cursor) == 1

    run(scenario())


def test_a_flush_waits_for_the_newest_write_though_an_older_one_has_ended(run):
    async def scenario():
        cursor, writes = cursor_with_store(10)
        for entry_id in (0, 1):
            cursor.delete(0, entry_id)
            cursor.write()
        writes[0][1].set_result(0)
        await asyncio.sleep(0)
        flushing = asyncio.ensure_future(cursor.flush())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not flushing.done()
        writes[1][1].set_result(1)
        await flushing
        assert len(writes) == 2
        assert cursor.write() is None, "there is nothing to wait for"

    run(scenario())


def test_properties_are_durable_when_they_are_said_to_be(run):
    async def scenario():
        cursor, writes = cursor_with_store(3)
        replacing = asyncio.ensure_future(cursor.replace_properties({"owner": "me"}))
        await asyncio.sleep(0)
        ((record, done),) = writes
        assert record.properties == {"owner": "me"}
        await asyncio.sleep(0)
        assert not replacing.done()
        done.set_result(1)
        await replacing

    run(scenario())


def test_the_last_acknowledged_entry_may_lie_behind_others(start, run):
    async def scenario():
        async with start(max_entries_per_ledger=3) as factory:
            _, cursor, positions = await log_with_cursor(factory, 7)
            assert cursor.last_acknowledged == cursor.mark_delete_position
            for last in (1, 5):
                cursor.delete(*positions[last])
                assert cursor.last_acknowledged == positions[last]
            cursor.mark_delete(positions[6])
            assert cursor.last_acknowledged == positions[6]

    run(scenario())
