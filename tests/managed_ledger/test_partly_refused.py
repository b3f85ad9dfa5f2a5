"""Queued operations on a full disk: some continue, some are refused, and later ones build on those
that continue.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from at_once import AtOnce
from bare_ledgers import opened, read_all
from faulty_disk import FaultyDisk

from managed_ledger.deletion import delete_managed_ledger
from managed_ledger.errors import StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import ledgers_key
from managed_ledger.list_record import ListRecord
from managed_ledger.storage.embedded.room import NEXT_TO_NOTHING_BYTES

PLENTY = 1_000_000_000


class FullDisk(FaultyDisk):
    """A disk with the free space that a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.free_bytes_left = PLENTY
        self.free = lambda: self.free_bytes_left


class Held(AtOnce):
    """While held, it only collects work; `let_go` does the collected work."""

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] | None = None

    def hold(self) -> None:
        self._work = []

    def do(self) -> None:
        """Do the work collected so far."""
        work, self._work = self._work or [], []
        for each in work:
            each()

    def let_go(self) -> None:
        self.do()
        self._work = None

    def submit(self, work: Any, /, *arguments: Any, **options: Any) -> "Future[Any]":
        if self._work is None:
            return super().submit(work, *arguments, **options)
        held: Future[Any] = Future()
        self._work.append(lambda: held.set_result(work(*arguments, **options)))
        return held


class Refused(ListRecord):
    __slots__ = ("__weakref__",)

    def write(self, value: Any, only_while: Any = None) -> "asyncio.Future[None]":
        refused = asyncio.get_running_loop().create_future()
        refused.set_exception(StorageFull("no room"))
        return refused


async def some_turns() -> None:
    """Let the loop run until work that waits for nothing else is queued."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_goes_on_counts_though_what_came_behind_it_finds_no_room(run, clock):
    """The next change builds on the change that continues, whether or not it is written by then."""

    async def scenario():
        disk, executor = FullDisk(), Held()
        backend = await opened(disk, clock, executor=executor)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        await ledger.append_one(b"before")
        disk.free_bytes_left = NEXT_TO_NOTHING_BYTES // 2
        executor.hold()
        first = backend.metadata.delete("first")  # is being written; what comes now waits for it
        await some_turns()
        named = ledger.set_property("name", "value")  # a small change that may make room
        rolling = asyncio.ensure_future(ledger.roll_over())
        await some_turns()
        assert len(ledger._record.queued.ledgers) == 2
        executor.do()
        await first
        with pytest.raises(StorageFull):
            await rolling
        assert not named.done()
        other = ledger.set_property("other", "value")
        executor.let_go()
        await asyncio.gather(named, other)
        disk.free_bytes_left = PLENTY
        await ledger.roll_over()
        again = await opened(FaultyDisk(disk.contents()), clock)
        found = await ManagedLedgerFactory(again, clock).open("log")
        assert found.properties.items() >= {("name", "value"), ("other", "value")}
        await again.close()
        await backend.close()

    run(scenario())


def test_the_data_of_ledgers_that_no_list_could_let_go_stays(run, clock):
    async def scenario():
        disk, executor = FullDisk(), Held()
        backend = await opened(disk, clock, executor=executor)
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        await ledger.append_one(b"old")
        await ledger.roll_over()
        await ledger.append_one(b"new")
        disk.free_bytes_left = NEXT_TO_NOTHING_BYTES // 2
        executor.hold()
        first = backend.metadata.delete("first")  # is being written; what comes now waits for it
        await some_turns()
        rolling = asyncio.ensure_future(ledger.roll_over())
        await some_turns()
        assert len(ledger._record.queued.ledgers) == 3
        trim = asyncio.ensure_future(ledger.trim())
        await some_turns()
        assert ledger._record.queued.deleting
        assert not ledger._record.deletable
        executor.let_go()
        await asyncio.gather(first, rolling, trim, return_exceptions=True)
        assert await read_all(ledger) == [b"old", b"new"]
        disk.free_bytes_left = PLENTY
        await ledger.trim()
        assert await read_all(ledger) == [b"new"]
        await backend.close()

    run(scenario())


def test_a_deletion_that_finds_no_room_leaves_nothing_to_the_garbage_collector(run, clock):
    async def scenario():
        backend = await opened(FullDisk(), clock)
        record = Refused(backend.metadata, ledgers_key("log"))
        gone = weakref.ref(record)
        gc.disable()
        try:
            with pytest.raises(StorageFull):
                await delete_managed_ledger("log", backend, record)
            await some_turns()
            del record
            assert gone() is None
        finally:
            gc.enable()
        await backend.close()

    run(scenario())
