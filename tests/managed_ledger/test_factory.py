"""The factory: concurrent opening, deleting and closing, and unfinished work of earlier runs."""

import asyncio
import logging

import pytest
from bare_ledgers import make_ledger
from virtual_loop import LoopClock, run_virtually

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.deletion import all_done, sweep
from managed_ledger.errors import (
    BadVersion,
    CorruptStorage,
    LedgerClosed,
    LedgerNotFound,
    StorageFull,
)
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import (
    CursorRecord,
    LedgerInfo,
    LedgerList,
    cursor_key,
    ledgers_key,
)
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.group_commit import Group
from managed_ledger.storage.memory import MemoryBackend

SMALL = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)


class FullMemory(MemoryBackend):
    """A backend without room while `full`."""

    full = False

    def _write(self, group: Group) -> "asyncio.Future[None]":
        if not self.full:
            return super()._write(group)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_exception(StorageFull("full"))
        return done


async def append(backend: MemoryBackend, ledger_id: int, count: int) -> None:
    done = asyncio.get_running_loop().create_future()
    backend.append(ledger_id, 0, [b"abc"] * count, [1] * count, done.set_result)
    await done


def stored(backend: MemoryBackend, name: str = "log") -> LedgerList:
    found = backend.metadata.get(ledgers_key(name))
    assert found is not None
    return LedgerList.decode(found.value, name)


def mark_of(backend: MemoryBackend, cursor: str) -> Position:
    found = backend.metadata.get(cursor_key("log", cursor))
    assert found is not None
    return CursorRecord.decode(found.value, cursor).mark_delete_position


# -- opening after an earlier run


def test_the_ledger_that_was_being_written_gets_its_counts_and_empty_ones_go(run, clock):
    async def scenario():
        backend = MemoryBackend()
        full, empty, last, let_go = [await make_ledger(backend) for _ in range(4)]
        for ledger_id, count in ((full, 3), (last, 2), (let_go, 1)):
            await append(backend, ledger_id, count)
        later_ms = clock.now_ms() + 5000
        listed = (
            LedgerInfo(full, 3, 9, 77),
            LedgerInfo(empty, 0, 0, 78),
            LedgerInfo(last, 0, 0, None),
        )
        value = LedgerList(listed, {"k": "v"}, (let_go,))
        await backend.metadata.put(ledgers_key("log"), value.encode())
        clock.ms = later_ms
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        current = ledger.ledgers()[-1].ledger_id
        kept = (LedgerInfo(full, 3, 9, 77), LedgerInfo(last, 2, 6, later_ms))
        assert ledger.ledgers() == [*kept, LedgerInfo(current, 0, 0, None)]
        assert backend.ledger_ids() == sorted([full, last, current])
        assert ledger.properties == {"k": "v"}
        assert ledger.created_at_ms == 0  # the list has no creation time
        await ledger.set_property("k", "w")
        assert stored(backend).deleting == ()

    run(scenario())


def test_a_ledger_that_is_listed_and_not_there_is_dropped_and_said_so(run, clock, caplog):
    async def scenario():
        backend = MemoryBackend()
        there = await make_ledger(backend)
        await append(backend, there, 1)
        listed = (LedgerInfo(there, 1, 3, 77), LedgerInfo(99, 0, 0, None))
        await backend.metadata.put(ledgers_key("log"), LedgerList(listed).encode())
        with caplog.at_level(logging.ERROR):
            ledger = await ManagedLedgerFactory(backend, clock).open("log")
        assert "lists ledger 99, which does not exist" in caplog.text
        assert ledger.last_confirmed == (there, 0)
        assert len(ledger.ledgers()) == 2

    run(scenario())


def test_the_time_of_its_making_is_that_of_the_first_opening(run, clock):
    async def scenario():
        backend = MemoryBackend()
        made_ms = clock.now_ms()
        for _ in range(3):
            factory = ManagedLedgerFactory(backend, clock)
            ledger = await factory.open("log")
            assert ledger.created_at_ms == made_ms
            await factory.close()
            clock.ms += 1000

    run(scenario())


def test_an_opening_that_failed_is_tried_again_by_the_next(run, clock):
    async def scenario():
        backend = MemoryBackend()
        await backend.metadata.put(ledgers_key("log"), b"\x07nonsense")
        factory = ManagedLedgerFactory(backend, clock)
        for _ in range(2):
            with pytest.raises(CorruptStorage, match="format 7"):
                await factory.open("log")
        await backend.metadata.put(ledgers_key("log"), LedgerList().encode())
        assert (await factory.open("log")).last_confirmed.entry_id == -1

    run(scenario())


# -- concurrent calls


def test_a_deletion_waits_for_the_opening_and_the_next_opening_for_the_deletion(run, clock):
    async def scenario():
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, clock)
        opening = asyncio.ensure_future(factory.open("log"))
        await asyncio.sleep(0)
        deletions = [asyncio.ensure_future(factory.delete("log")) for _ in range(2)]
        first = await opening
        await asyncio.sleep(0)
        second = await factory.open("log")
        await asyncio.gather(*deletions)
        assert first.closed
        assert not second.closed
        assert factory.exists("log")
        await second.append_one(b"x")
        assert backend.ledger_ids() == [second.last_confirmed.ledger_id]

    run(scenario())


def test_a_log_that_is_not_open_is_deleted_all_the_same(run, clock):
    async def scenario():
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        await ledger.open_cursor("sub", EARLIEST)
        await ledger.append_one(b"x")
        await factory.close()
        await ManagedLedgerFactory(backend, clock).delete("log")
        assert backend.ledger_ids() == []
        assert backend.metadata.keys("") == []

    run(scenario())


def test_a_closed_factory_has_closed_all_and_opens_nothing(run, clock):
    async def scenario():
        factory = ManagedLedgerFactory(MemoryBackend(), clock)
        ledgers = [await factory.open(name) for name in "ab"]
        opening = asyncio.ensure_future(factory.open("c"))
        visits: list[str] = []
        factory.housekeeper.visit_in(0, lambda: visits.append("late"))
        await asyncio.sleep(0)
        await factory.close()
        await asyncio.sleep(0)
        assert visits == []
        assert all(ledger.closed for ledger in (*ledgers, await opening))
        with pytest.raises(LedgerClosed, match="closing"):
            await factory.open("d")

    run(scenario())


def test_what_keeps_one_log_from_closing_well_is_told_when_all_are_closed(run, clock):
    async def scenario():
        backend = FullMemory()
        factory = ManagedLedgerFactory(backend, clock)
        ledgers = [await factory.open(name) for name in "ab"]
        cursor = await ledgers[0].open_cursor("sub", EARLIEST)
        cursor.delete(*await ledgers[0].append_one(b"x"))
        close_of_b = ledgers[1].close

        async def closes_slowly() -> None:
            for _ in range(200):
                await asyncio.sleep(0)
            await close_of_b()

        ledgers[1].close = closes_slowly
        backend.full = True
        with pytest.raises(StorageFull):
            await factory.close()
        assert all(ledger.closed for ledger in ledgers)

    run(scenario())


def test_a_failure_while_the_factory_closes_is_reported_to_its_caller_only(run, clock):
    async def scenario():
        backend = MemoryBackend()
        await backend.metadata.put(ledgers_key("corrupt"), b"\x07nonsense")
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        opening = asyncio.ensure_future(factory.open("corrupt"))
        await asyncio.sleep(0)
        await factory.close()
        assert ledger.closed
        with pytest.raises(CorruptStorage):
            await opening

    run(scenario())


def test_each_log_may_have_limits_of_its_own(run, clock):
    async def scenario():
        factory = ManagedLedgerFactory(MemoryBackend(), clock)
        assert (await factory.open("log", SMALL)).config is SMALL
        assert (await factory.open("other")).config.max_entries_per_ledger == 50_000

    run(scenario())


def test_a_fenced_log_that_is_opened_again_writes_its_old_cursors_no_more(run, clock):
    async def scenario():
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, clock)
        fenced = await factory.open("log")
        positions = [await fenced.append_one(b"x") for _ in range(2)]
        old = await fenced.open_cursor("sub", EARLIEST)
        await backend.metadata.put(ledgers_key("log"), stored(backend).encode())  # another writer
        with pytest.raises(BadVersion):
            await fenced.roll_over()
        ledger = await factory.open("log")
        assert ledger is not fenced
        ledger.cursors["sub"].mark_delete(positions[1])
        await ledger.flush_cursors()
        old.mark_delete(positions[0])
        await old.flush()
        assert mark_of(backend, "sub") == positions[1]
        await factory.close()

    run(scenario())


# -- deleting, and deletions cut short by a crash


def test_a_deletion_that_failed_is_finished_by_the_next_or_by_the_next_start(run, clock):
    async def scenario():
        for finish in ("again", "sweep"):
            backend = FullMemory()
            factory = ManagedLedgerFactory(backend, clock)
            ledger = await factory.open("log")
            await ledger.open_cursor("sub", EARLIEST)
            await ledger.append_one(b"x")
            backend.full = True
            with pytest.raises(StorageFull):
                await factory.delete("log")
            backend.full = False
            assert ledger.closed
            assert factory.exists("log")  # the deletion was not decided
            if finish == "again":
                await factory.delete("log")
            else:
                value = LedgerList(deleting=tuple(backend.ledger_ids()), deleted=True)
                await backend.metadata.put(ledgers_key("log"), value.encode())
                await sweep(backend)
            assert backend.ledger_ids() == []
            assert backend.metadata.keys("") == []

    run(scenario())


def test_a_sweep_deletes_what_no_list_counts_and_nothing_else(run, clock):
    async def scenario():
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("kept")
        await ledger.append_one(b"x")
        await ledger.open_cursor("sub", EARLIEST)
        kept = backend.ledger_ids()
        orphan, let_go, dead = [await make_ledger(backend) for _ in range(3)]
        value = LedgerList((LedgerInfo(kept[0], 0, 0, None),), deleting=(let_go,))
        await backend.metadata.put(ledgers_key("kept"), value.encode())
        tombstone = LedgerList(deleting=(dead,), deleted=True)
        await backend.metadata.put(ledgers_key("dead"), tombstone.encode())
        await backend.metadata.put(cursor_key("dead", "sub"), b"")
        assert orphan in backend.ledger_ids()
        await ManagedLedgerFactory(backend, clock).sweep()
        assert backend.ledger_ids() == kept
        assert backend.metadata.keys("") == [cursor_key("kept", "sub"), ledgers_key("kept")]

    run(scenario())


def test_all_work_ends_before_the_first_failure_is_raised(run):
    async def scenario():
        ended: list[int] = []

        async def work(number: int, error: Exception | None = None) -> None:
            for _ in range(number):
                await asyncio.sleep(0)
            ended.append(number)
            if error is not None:
                raise error

        with pytest.raises(LedgerNotFound):
            await all_done(
                [work(1), work(2, LedgerNotFound("2")), work(3, StorageFull("3")), work(4)]
            )
        assert ended == [1, 2, 3, 4]
        await all_done([])

    run(scenario())


# -- timed work without room


def test_the_work_of_visits_is_over_when_the_factory_is_closed_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, LoopClock(), SMALL)
        ledger = await factory.open("log")
        for _ in range(5):
            await ledger.append_one(b"x")
        trim, trims = ledger.trim, list[str]()

        async def slowly() -> None:
            trims.append("begun")
            await asyncio.sleep(60)
            await trim()
            trims.append("done")

        ledger.trim = slowly  # type: ignore[method-assign]
        await asyncio.sleep(100)
        assert trims == ["begun", "done"]
        assert factory._work == {}
        await ledger.append_one(b"x")
        await asyncio.sleep(20)
        await factory.close()
        assert trims == ["begun", "done"] * 2

    run_virtually(scenario())


def test_cursors_that_could_not_be_written_are_written_when_there_is_room(caplog) -> None:
    async def scenario() -> None:
        backend = FullMemory()
        factory = ManagedLedgerFactory(backend, LoopClock())
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        position = await ledger.append_one(b"x")
        backend.full = True
        cursor.mark_delete(position)
        await asyncio.sleep(3.5)
        assert "cursors of 1 logs could not be written: full" in caplog.text
        assert mark_of(backend, "sub") != position
        backend.full = False
        await asyncio.sleep(1.1)
        assert mark_of(backend, "sub") == position
        await factory.close()

    run_virtually(scenario())


def test_cursors_are_written_a_second_after_they_changed_and_not_before() -> None:
    async def scenario() -> None:
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, LoopClock())
        ledger = await factory.open("log")
        cursors = [await ledger.open_cursor(name, EARLIEST) for name in "ab"]
        positions = [await ledger.append_one(b"x") for _ in range(2)]
        for step in range(2):
            for cursor in cursors:
                cursor.mark_delete(positions[step])
            await asyncio.sleep(0.9)
            assert mark_of(backend, "a") != positions[step]
            await asyncio.sleep(0.2)
            assert mark_of(backend, "a") == mark_of(backend, "b") == positions[step]
        await factory.close()

    run_virtually(scenario())


def test_a_trim_that_failed_is_tried_again_some_seconds_later(caplog) -> None:
    async def scenario() -> None:
        backend = FullMemory()
        factory = ManagedLedgerFactory(backend, LoopClock(), SMALL)
        ledger = await factory.open("log")
        for _ in range(5):
            await ledger.append_one(b"x")
        backend.full = True
        await asyncio.sleep(25)
        assert "log could not be trimmed" in caplog.text
        assert len(ledger.ledgers()) == 3
        backend.full = False
        await asyncio.sleep(11)
        assert len(ledger.ledgers()) == 1
        await factory.close()

    run_virtually(scenario())


def test_a_log_with_old_ledgers_is_looked_after_from_its_opening_on() -> None:
    async def scenario() -> None:
        backend = MemoryBackend()
        for sleeps_s, left in ((0, 3), (11, 1)):
            factory = ManagedLedgerFactory(backend, LoopClock(), SMALL)
            ledger = await factory.open("log")
            if not sleeps_s:
                for _ in range(5):
                    await ledger.append_one(b"x")
            await asyncio.sleep(sleeps_s)
            assert len(ledger.ledgers()) == left
            await factory.close()

    run_virtually(scenario())
