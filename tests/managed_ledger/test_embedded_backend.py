"""The embedded engine as a whole: its beginning, its end, and whose threads do the work."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bare_ledgers import make_ledger
from faulty_disk import FaultyDisk

from managed_ledger.errors import CorruptStorage, LedgerClosed
from managed_ledger.storage.journal import EmbeddedBackend


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
        await backend._checkpoints.run_once()
        backend._state.ledgers[ledger].evict()
        assert (await backend.read(ledger, 0, 0, 1, 1)).entries == [b"x" * 100]
        assert timers() != []
        await backend.close()
        assert timers() == []
        with pytest.raises(LedgerClosed, match="start it again"):
            await backend.metadata.put("key", b"value")

    run(scenario())


def timers() -> list[asyncio.TimerHandle]:
    loop: Any = asyncio.get_running_loop()
    return [timer for timer in loop._scheduled if not timer.cancelled()]
