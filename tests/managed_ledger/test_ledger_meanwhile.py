"""Calls of a log while another write is in flight."""

import asyncio
from typing import Any

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import LedgerClosed, StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, LATEST
from managed_ledger.storage.group_commit import Group
from managed_ledger.storage.memory import MemoryBackend

SMALL = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)


class SlowMemory(MemoryBackend):
    """Writes wait for `may_write`, and fail while the backend is `full`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.full = False

    def _write(self, group: Group) -> "asyncio.Future[None]":
        return asyncio.ensure_future(self._write_then())

    async def _write_then(self) -> None:
        await self.may_write.wait()
        if self.full:
            raise StorageFull("full")


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("change", ["trim", "property"])
def test_the_next_opening_begins_with_the_last_change_of_the_list(run, clock, change):
    """Neither the closing nor the opening caller waits for this change itself."""

    async def scenario():
        backend = SlowMemory()
        factory = ManagedLedgerFactory(backend, clock, SMALL)
        ledger = await factory.open("log")
        for _ in range(5):
            await ledger.append_one(b"x")
        backend.may_write.clear()
        work = ledger.trim() if change == "trim" else ledger.set_property("key", "value")
        changing = asyncio.ensure_future(work)
        await some_turns()
        closing = asyncio.ensure_future(ledger.close())
        await some_turns()
        opening = asyncio.ensure_future(factory.open("log"))
        await some_turns()
        backend.may_write.set()
        again = await opening
        await asyncio.gather(changing, closing)
        if change == "trim":
            assert [info.entries for info in again.ledgers()] == [1, 0]
        else:
            assert again.properties["key"] == "value"

    run(scenario())


def test_a_log_closes_though_the_last_change_of_its_list_failed(run, clock):
    async def scenario():
        backend = SlowMemory()
        factory = ManagedLedgerFactory(backend, clock, SMALL)
        ledger = await factory.open("log")
        backend.may_write.clear()
        changes = [ledger.set_property("key", "value"), ledger.set_property("key", "other")]
        closing = asyncio.ensure_future(ledger.close())
        await some_turns()
        assert not closing.done()
        backend.full = True
        backend.may_write.set()
        await closing
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageFull, StorageFull]
        backend.full = False
        assert "key" not in (await factory.open("log")).properties

    run(scenario())


def test_who_reads_what_is_deleted_meanwhile_hears_that_the_log_has_ended(run, clock):
    async def scenario():
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        await ledger.append_one(b"x")
        read, disk_answers = backend.read, asyncio.Event()

        async def slow_read(*args: Any) -> Any:
            await disk_answers.wait()
            return await read(*args)

        backend.read = slow_read  # type: ignore[method-assign]
        reading = asyncio.ensure_future(ledger.read(EARLIEST, LATEST, 10, 100))
        await asyncio.sleep(0)
        await factory.delete("log")
        disk_answers.set()
        with pytest.raises(LedgerClosed, match="log was deleted"):
            await reading

    run(scenario())


def test_all_logs_of_a_prefix_are_deleted_with_those_that_are_about_to_be_made(run, clock):
    async def scenario():
        backend = SlowMemory()
        factory = ManagedLedgerFactory(backend, clock)
        await factory.open("a/there")
        opening = [asyncio.ensure_future(factory.open(name)) for name in ("a/new", "b/new")]
        await asyncio.sleep(0)
        await factory.delete_all("a/")
        await asyncio.gather(*opening)
        assert factory.names() == ["b/new"]

    run(scenario())


def test_a_cursor_that_is_there_is_not_forgotten_when_it_cannot_be_written(run, clock):
    """A recreated cursor would begin at the end of the log."""

    async def scenario():
        backend = SlowMemory()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        first = await ledger.append_one(b"x")
        await ledger.append_one(b"y")
        cursor.delete(*first)
        backend.full = True
        with pytest.raises(StorageFull):
            await ledger.open_cursor("sub")
        backend.full = False
        again = await ledger.open_cursor("sub")
        assert (again, again.mark_delete_position) == (cursor, first)

    run(scenario())


def test_who_could_not_make_a_cursor_forgets_no_other_s(run, clock):
    async def scenario():
        backend = SlowMemory()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")

        async def make_and_try_again() -> ManagedCursor:
            await make()
            backend.full = False
            return await ledger.open_cursor("sub", EARLIEST)

        async def make() -> None:
            with pytest.raises(StorageFull):
                await ledger.open_cursor("sub", EARLIEST)

        backend.full = True
        again, _ = await asyncio.gather(make_and_try_again(), make())
        assert ledger.cursors["sub"] is again

    run(scenario())


def test_of_a_cursor_that_could_not_be_deleted_what_came_before_is_written(run, clock):
    async def scenario():
        backend = SlowMemory()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        position = await ledger.append_one(b"x")
        cursor.delete(*position)
        backend.full = True
        with pytest.raises(StorageFull):
            await ledger.delete_cursor("sub")
        backend.full = False
        await factory.close()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        assert ledger.cursors["sub"].mark_delete_position == position

    run(scenario())
