"""The embedded engine as a whole: opening, closing, and the threads that do the work."""

import asyncio
import errno
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from at_once import AtOnce
from bare_ledgers import checkpointed, make_ledger
from faulty_disk import FaultyDisk, failing
from virtual_loop import LoopClock, run_virtually

from managed_ledger.errors import CorruptStorage, LedgerClosed, StorageFailed, StorageFull
from managed_ledger.storage.embedded.journal import EmbeddedBackend

JOURNAL = "journal/0000000001"


def test_closing_what_is_not_open_does_nothing(run, clock):
    async def scenario():
        disk = FaultyDisk({"journal/0000000001": b"x" * 100})
        backend = EmbeddedBackend(disk, clock)
        await backend.close()
        assert disk.operations == []
        with pytest.raises(CorruptStorage):
            await backend.open()
        assert not disk.locked
        count = len(disk.operations)
        await backend.close()
        assert len(disk.operations) == count
        backend = EmbeddedBackend(disk := FaultyDisk(), clock)
        await backend.open()
        assert disk.locked
        await backend.close()
        assert not disk.locked
        count = len(disk.operations)
        await backend.close()
        assert len(disk.operations) == count
        assert disk.open_files == 0

    run(scenario())


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.EIO, StorageFailed), (errno.ENOSPC, StorageFull)]
)
def test_a_directory_that_cannot_be_read_or_written_is_let_go_of(run, clock, number, expected):
    async def scenario():
        disk = FaultyDisk()
        disk.fault = failing(number, ("create", "journal/"))
        with pytest.raises(expected, match="the data directory"):
            await EmbeddedBackend(disk, clock).open()
        assert not disk.locked
        disk.fault = lambda operation, name: None
        backend = EmbeddedBackend(disk, clock)
        await backend.open()
        await backend.close()

    run(scenario())


def test_threads_of_its_own_end_with_it_and_those_it_was_given_go_on(run, clock):
    async def scenario():
        given = ThreadPoolExecutor(1)
        for executor in (None, given):
            backend = EmbeddedBackend(FaultyDisk(), clock, executor=executor)
            await backend.open()
            await backend.metadata.put("key", b"value")
            await backend.close()
            for used in (backend._commit_executor, backend._file_executor):
                if executor is None:
                    with pytest.raises(RuntimeError, match="shutdown"):
                        used.submit(int)
                else:
                    assert used.submit(int).result() == 0
        given.shutdown()

    run(scenario())


def test_after_its_end_no_timer_is_left_and_nothing_is_taken(run, clock):
    async def scenario():
        backend = EmbeddedBackend(FaultyDisk(), clock, "relaxed", journal_max_bytes=100)
        await backend.open()
        ledger = await make_ledger(backend)
        for first in range(4):
            done = asyncio.get_running_loop().create_future()
            backend.append(ledger, first, [b"x" * 100], [1], done.set_result)
            assert await done is None
        await checkpointed(backend)
        backend._state.ledgers[ledger].evict()
        assert (await backend.read(ledger, 0, 0, 1, 1)).entries == [b"x" * 100]
        assert timers() != []
        await backend.close()
        assert timers() == []
        with pytest.raises(LedgerClosed, match="start it again"):
            await backend.metadata.put("key", b"value")

    run(scenario())


def test_after_the_disk_has_failed_it_is_told_once_and_nothing_is_written_at_the_end(run, clock):
    """Both a commit and the background work fail."""

    async def scenario():
        disk, fatal = FaultyDisk(), list[Exception]()
        backend = EmbeddedBackend(
            disk, clock, on_fatal=fatal.append, executor=AtOnce(), journal_max_bytes=100
        )
        await backend.open()
        for _ in range(2):
            await backend.metadata.put("key", b"x" * 200)
        for _ in range(100):  # the checkpoint ends
            await asyncio.sleep(0)
        disk.fault = failing(errno.EIO, ("fdatasync", ""))
        with pytest.raises(StorageFailed):
            await backend.metadata.put("key", b"x")
        assert isinstance(fatal[0], StorageFailed)
        backend._checkpoint_failed(fatal[0])
        assert len(fatal) == 1
        disk.fault = lambda operation, name: None
        before, count = disk.contents(), len(disk.operations)
        await backend.close()
        assert disk.contents() == before
        assert len(disk.operations) == count
        assert not disk.locked
        assert disk.open_files == 0

    run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_with_relaxed_durability_each_commit_is_synced_within_a_second(fails):
    async def scenario():
        alarms: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: alarms.append(context))
        disk, fatal = FaultyDisk(), list[Exception]()
        backend = EmbeddedBackend(
            disk, LoopClock(), "relaxed", on_fatal=fatal.append, executor=AtOnce()
        )
        await backend.open()
        await asyncio.sleep(5)
        for _ in range(3):
            for _ in range(2):
                count = disk.operations.count(("fdatasync", JOURNAL))
                await backend.metadata.put("key", b"value")
                await asyncio.sleep(0.4)
                assert disk.operations.count(("fdatasync", JOURNAL)) == count
            await asyncio.sleep(0.3)
            assert disk.operations.count(("fdatasync", JOURNAL)) == count + 1
            await asyncio.sleep(5)
            assert disk.operations.count(("fdatasync", JOURNAL)) == count + 1
        if fails:
            await backend.metadata.put("key", b"value")
            disk.fault = failing(errno.EIO, ("fdatasync", JOURNAL))
            await asyncio.sleep(1.1)
            assert len(fatal) == 1
            fatal.clear()
            with pytest.raises(StorageFailed):
                await backend.metadata.put("key", b"value")
        await backend.close()
        del backend  # the last reference
        gc.collect()
        assert alarms == []

    run_virtually(scenario())


def timers() -> list[asyncio.TimerHandle]:
    loop: Any = asyncio.get_running_loop()
    return [timer for timer in loop._scheduled if not timer.cancelled()]


@pytest.mark.parametrize("folder", ["journal/", "ledgers/"])
def test_closing_waits_for_what_is_being_written(run, clock, folder):
    begun, may_end, seen = threading.Event(), threading.Event(), list[bool]()

    async def scenario():
        disk = FaultyDisk()
        backend = EmbeddedBackend(disk, clock, journal_max_bytes=100)
        await backend.open()
        ledger = await make_ledger(backend)

        def slow_write(operation: str, name: str) -> None:
            if operation == "write" and name.startswith(folder):
                begun.set()
                assert may_end.wait(10)
                seen.append(disk.locked)

        disk.fault = slow_write
        for first in range(2):
            done = asyncio.get_running_loop().create_future()
            backend.append(ledger, first, [b"x" * 100], [1], done.set_result)
            if folder == "ledgers/":
                await done
        await asyncio.to_thread(begun.wait)
        closing = asyncio.ensure_future(backend.close())
        for _ in range(20):  # enough turns for a `close` that does not wait
            await asyncio.get_running_loop().run_in_executor(backend._file_executor, int)
        assert not closing.done()
        may_end.set()
        await closing
        assert all(seen)
        assert not disk.locked
        (journal,) = disk.names("journal")
        assert disk.files[journal] == b"", "everything stands where it belongs"

    run(scenario())
