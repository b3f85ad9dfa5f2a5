"""Rollover, trimming and closing: when, how far, and on a full disk."""

import asyncio
import errno

import pytest
from at_once import AtOnce
from bare_ledgers import opened
from faulty_disk import FaultyDisk, failing
from virtual_loop import LoopClock, run_virtually

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import LedgerClosed, LedgerNotFound, NoDescriptors, StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.rollover import ROLLOVER_RETRY_MS
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.ledger_files import BLOCK_BYTES
from managed_ledger.storage.group_commit import Group
from managed_ledger.storage.memory import MemoryBackend
from managed_ledger.trim import Retention


async def filled(ledger, count: int) -> list[Position]:
    return [await ledger.append_one(b"%d" % n) for n in range(count)]


async def over_a_disk(clock, **limits):
    """A log on a disk; `full(True)` fails all writes to the journal."""
    disk = FaultyDisk()
    backend = await opened(disk, clock)
    config = ManagedLedgerConfig(**limits)
    ledger = await ManagedLedgerFactory(backend, clock, config).open("log")

    def full(is_full: bool) -> None:
        faulty = failing(errno.ENOSPC, ("write", "journal/"))
        disk.fault = faulty if is_full else lambda operation, name: None

    return ledger, full


async def rolled(ledger) -> None:
    """Wait until no rollover is in progress."""
    await ledger._rollover.settled()


def test_how_many_messages_an_entry_carries(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            position = await ledger.append_one(b"batch", 7)
            assert ledger.message_count(position) == 7
            assert ledger.has_entry(position)
            assert ledger.message_count(position.after) == 0
            assert not ledger.has_entry(position.after)
            assert ledger.damaged(position.ledger_id) == ()

    run(scenario())


def test_a_ledger_is_full_at_its_limit_of_bytes(start, run):
    async def scenario():
        async with start(max_size_per_ledger_bytes=100) as factory:
            ledger = await factory.open("log")
            for size in (60, 40, 99, 1, 1):
                await ledger.append_one(b"x" * size)
            assert [info.entries for info in ledger.ledgers()] == [2, 2, 1]
            assert [info.size_bytes for info in ledger.ledgers()] == [100, 100, 1]
            assert ledger.total_size_bytes == 201

    run(scenario())


def test_trimming_stops_before_entries_that_another_reader_needs(run, clock):
    async def scenario():
        config = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)
        backend = MemoryBackend()
        ledger = await ManagedLedgerFactory(backend, clock, config).open("log")
        positions = await filled(ledger, 9)
        needed = [positions[5], positions[3]]
        ledger.trimmer.keep(lambda: needed[0])
        ledger.trimmer.keep(lambda: needed[1])
        await ledger.trim()
        assert ledger.first_position == positions[2]
        needed[1] = positions[8]
        await ledger.trim()
        assert ledger.first_position == positions[4]
        cursor = await ledger.open_cursor("slow", positions[4])
        needed[0] = positions[8]
        await ledger.trim()
        assert ledger.first_position == positions[4]
        cursor.mark_delete(positions[8])
        await ledger.trim()
        assert ledger.first_position == positions[8]

    run(scenario())


def test_a_trim_that_could_not_be_written_leaves_everything_there(run, clock):
    async def scenario():
        limits = {"max_entries_per_ledger": 2, "min_rollover_time_ms": 0}
        ledger, full = await over_a_disk(clock, **limits)
        await filled(ledger, 5)
        await rolled(ledger)
        before, gone = ledger.ledgers(), list[int]()
        ledger.trimmer.on_trimmed += (gone.append,)
        full(True)
        with pytest.raises(StorageFull):
            await ledger.trim()
        assert (ledger.ledgers(), gone) == (before, [])
        assert ledger.has_entries(EARLIEST, LATEST)
        full(False)
        await ledger.trim()
        assert ledger.ledgers() == before[2:]
        assert gone == [info.ledger_id for info in before[:2]]

    run(scenario())


def test_without_room_for_the_next_ledger_the_full_one_takes_more_and_it_is_tried_again(run, clock):
    async def scenario():
        limits = {"max_entries_per_ledger": 2, "min_rollover_time_ms": 1000}
        ledger, full = await over_a_disk(clock, **limits)
        await filled(ledger, 1)
        full(True)
        with pytest.raises(StorageFull):
            await ledger.roll_over()
        full(False)
        await filled(ledger, 1)
        clock.ms += ROLLOVER_RETRY_MS - 1
        await filled(ledger, 1)
        await rolled(ledger)
        assert [info.entries for info in ledger.ledgers()] == [3]
        assert not ledger.closed
        clock.ms += 1
        await filled(ledger, 1)
        await rolled(ledger)
        assert [info.entries for info in ledger.ledgers()] == [4, 0]
        await filled(ledger, 3)
        assert [info.entries for info in ledger.ledgers()] == [4, 3]  # the ledger is too young

    run(scenario())


def test_a_ledger_has_its_maximum_age_from_when_it_was_begun(run, clock):
    async def scenario():
        config = ManagedLedgerConfig(max_rollover_time_ms=1000, retention=Retention(-1, -1))
        ledger = await ManagedLedgerFactory(MemoryBackend(), clock, config).open("log")
        assert ledger.next_visit_s() is None
        await filled(ledger, 1)
        assert ledger.next_visit_s() == 1.0
        clock.ms += 999
        assert ledger.next_visit_s() == 0.001
        ledger.roll_over_when_old()
        await rolled(ledger)
        assert len(ledger.ledgers()) == 1
        clock.ms += 1
        assert ledger.next_visit_s() == 0.0
        ledger.settle_down()
        assert ledger.next_visit_s() is None  # the rollover has begun
        ledger.roll_over_when_old()
        await rolled(ledger)
        assert len(ledger.ledgers()) == 2
        await filled(ledger, 1)
        assert ledger.next_visit_s() == 1.0
        ledger.roll_over_when_old()
        await rolled(ledger)
        assert len(ledger.ledgers()) == 2

    run(scenario())


def test_the_next_visit_is_when_the_oldest_ledger_expires(run, clock):
    async def scenario():
        config = ManagedLedgerConfig(
            min_rollover_time_ms=0, max_rollover_time_ms=10_000, retention=Retention(5000, -1)
        )
        ledger = await ManagedLedgerFactory(MemoryBackend(), clock, config).open("log")
        await filled(ledger, 1)
        await ledger.roll_over()
        clock.ms += 1500
        assert ledger.next_visit_s() == 3.5
        await filled(ledger, 1)
        assert ledger.next_visit_s() == 3.5
        clock.ms += 3500
        ledger.settle_down()
        assert ledger.next_visit_s() == 5.0  # the age of the current ledger
        await ledger.trim()
        assert len(ledger.ledgers()) == 1

    run(scenario())


def test_what_expires_while_what_expired_before_is_let_go_is_trimmed_too() -> None:
    """Two ledgers were closed within the time that one write of the list takes."""

    class SlowBackend(MemoryBackend):
        slow_s = 0.0

        def _write(self, group: Group) -> asyncio.Future[None]:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(self.slow_s, done.set_result, None)
            return done

    async def scenario() -> None:
        backend = SlowBackend()
        config = ManagedLedgerConfig(min_rollover_time_ms=0, retention=Retention(60_000, -1))
        factory = ManagedLedgerFactory(backend, LoopClock(), config)
        ledger = await factory.open("log")
        for _ in range(2):
            await filled(ledger, 1)
            await ledger.roll_over()
            await asyncio.sleep(0.2)
        backend.slow_s = 0.3
        await asyncio.sleep(100)
        assert [info.entries for info in ledger.ledgers()] == [0]
        await factory.close()

    run_virtually(scenario())


def test_closing_is_done_once_for_all_callers(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            cursor = await ledger.open_cursor("sub", EARLIEST)
            position = await ledger.append_one(b"x")
            cursor.delete(*position)
            await asyncio.gather(ledger.close(), ledger.close())
            await ledger.close()
            assert ledger.closed
            for refused in (
                ledger.roll_over,
                ledger.trim,
                lambda: ledger.open_cursor("other"),
                lambda: ledger.set_property("key", "value"),
                lambda: ledger.read(EARLIEST, LATEST, 1, 1),
            ):
                with pytest.raises(LedgerClosed, match="open it again"):
                    await refused()
            with pytest.raises(LedgerClosed):
                ledger.new_non_durable_cursor("reader")
            again = await factory.open("log")
            assert again is not ledger
            assert again.cursors["sub"].mark_delete_position == position

    run(scenario())


def test_closing_waits_for_a_rollover_that_is_under_way(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            await ledger.append_one(b"a")
            rolling = asyncio.ensure_future(ledger.roll_over())
            await asyncio.sleep(0)
            held = asyncio.ensure_future(ledger.append_one(b"b"))
            await asyncio.sleep(0)
            await ledger.close()
            await rolling
            assert (await held).entry_id == 0
            assert [info.entries for info in ledger.ledgers()] == [1, 1]

    run(scenario())


def test_who_wants_to_is_told_that_a_log_is_looked_after(run, clock):
    async def scenario():
        ledger = await ManagedLedgerFactory(MemoryBackend(), clock).open("log")
        visits: list[int] = []
        ledger.on_visit += (lambda: visits.append(1), lambda: visits.append(2))
        ledger.settle_down()
        assert visits == [1, 2]

    run(scenario())


def test_a_new_cursor_begins_where_it_was_told_with_the_properties_it_was_given(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            positions = await filled(ledger, 3)
            cursor = await ledger.open_cursor("sub", positions[1], {"k": "v"})
            assert (cursor.mark_delete_position, cursor.properties) == (positions[1], {"k": "v"})
            reader = ledger.new_non_durable_cursor("reader")
            assert reader.mark_delete_position == positions[2]
            assert ledger.previous_position(positions[2]) == positions[1]
            assert ledger.next_position(positions[1]) == positions[2]
            assert ledger.count_between(positions[0], positions[2]) == 2

    run(scenario())


class Watched(MemoryBackend):
    """A backend that runs a function before its next read."""

    happens = None

    async def read(self, *request: int) -> EntryRun:
        happens, self.happens = self.happens, None
        if happens is not None:
            await happens()
        return await super().read(*request)


def test_a_read_whose_ledger_is_trimmed_meanwhile_goes_on_behind_it(run, clock):
    async def scenario():
        backend = Watched()
        config = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)
        ledger = await ManagedLedgerFactory(backend, clock, config).open("log")
        positions = await filled(ledger, 5)
        backend.happens = ledger.trim
        found = await ledger.read(positions[0], LATEST, 10, 100)
        assert found is not None
        assert (found.ledger_id, found.entries) == (positions[4].ledger_id, [b"4"])
        assert backend.ledger_ids() == [positions[4].ledger_id]
        cached = ledger.read_cached(positions[0], LATEST, 10, 100)
        assert cached is not None
        assert cached.entries == [b"4"]

    run(scenario())


def test_a_read_of_a_ledger_that_was_lost_says_so(run, clock):
    async def scenario():
        backend = MemoryBackend()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        position = await ledger.append_one(b"x")
        backend._state.ledgers[position.ledger_id].note_damage(0, 0)
        assert ledger.damaged(position.ledger_id) == ((0, 0),)
        await backend.delete_ledger(position.ledger_id)
        with pytest.raises(LedgerNotFound):
            await ledger.read(EARLIEST, LATEST, 10, 100)
        assert ledger.damaged(position.ledger_id) == ()

    run(scenario())


def test_who_has_to_know_what_there_is_reads_all_but_what_is_damaged(run, clock, caplog):
    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        entries = [bytes([65 + number]) * BLOCK_BYTES for number in range(4)]  # a block each
        for entry in entries:
            await ledger.append_one(entry)
        await factory.close()
        await backend.close()
        (name,) = disk.names("ledgers")
        for block in (1, 2):
            disk.files[name][block * len(disk.files[name]) // 4 + 1000] ^= 1
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        found, position = [], EARLIEST
        while run_ := await ledger.read_whole(position, LATEST, 100, 1 << 20):
            found += run_.entries
            position = Position(run_.ledger_id, run_.first_entry_id + len(run_.entries))
        assert found == [entries[0], entries[3]]
        assert "log is opened without its damaged entries: entries 1 to 1 of ledger" in caplog.text
        assert "without its damaged entries: entries 2 to 2 of ledger" in caplog.text

    run(scenario())


def test_a_log_that_is_never_at_rest_is_looked_after_all_the_same():
    async def scenario() -> None:
        config = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)
        factory = ManagedLedgerFactory(MemoryBackend(), LoopClock(), config)
        ledger = await factory.open("log")
        assert ledger.housekeeper is factory.housekeeper
        for _ in range(30):
            await ledger.append_one(b"x")
            await asyncio.sleep(1)
        assert len(ledger.ledgers()) <= 7
        await ledger.close()
        assert len(factory.housekeeper) == 0
        await ledger.delete_cursor("of somebody")
        assert len(factory.housekeeper) == 0
        await factory.close()

    run_virtually(scenario())


def test_when_it_is_closed_every_append_has_been_answered(start, run):
    async def scenario():
        async with start() as factory:
            ledger = await factory.open("log")
            answered: list[Position | None] = []
            for _ in range(3):
                ledger.append([b"x"], [1], lambda first, error: answered.append(first))
            await ledger.close()
            assert [first and first.entry_id for first in answered] == [0, 1, 2]

    run(scenario())


def test_a_ledger_that_was_let_go_and_could_not_be_deleted_goes_with_the_next_visit():
    async def scenario():
        disk, clock = FaultyDisk(), LoopClock()
        backend = EmbeddedBackend(disk, clock, executor=AtOnce())
        await backend.open()
        config = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)
        factory = ManagedLedgerFactory(backend, clock, config)
        ledger = await factory.open("log")
        await filled(ledger, 4)
        await rolled(ledger)
        backend.delete_ledger, delete = refused, backend.delete_ledger
        await asyncio.sleep(15)
        assert len(ledger.ledgers()) == 1, "the others are not counted any more"
        assert len(backend.ledger_ids()) == 3
        backend.delete_ledger = delete
        await asyncio.sleep(15)
        assert len(backend.ledger_ids()) == 1
        assert not ledger.has_old_ledgers
        await factory.close()
        await backend.close()

    async def refused(ledger_id: int) -> None:
        raise NoDescriptors("no file descriptor left")

    run_virtually(scenario())
