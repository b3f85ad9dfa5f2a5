"""Tasks with several waiters: each may be cancelled; the others get the failure."""

import asyncio
import gc

import pytest

from managed_ledger.errors import StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.shared_task import shared_task
from managed_ledger.storage.memory import MemoryBackend


async def fails(after: "asyncio.Future[None]") -> None:
    await after
    raise StorageFull("full")


def alarms() -> list[object]:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    return heard


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    gc.collect()


def test_a_failure_after_all_waiters_gave_up_is_no_alarm(run):
    async def scenario():
        heard, gate = alarms(), asyncio.get_running_loop().create_future()
        task = shared_task(fails(gate))
        waiter = asyncio.ensure_future(asyncio.shield(task))
        await asyncio.sleep(0)
        waiter.cancel()
        await some_turns()
        gate.set_result(None)
        del task
        await some_turns()
        assert heard == []

    run(scenario())


def test_who_still_waits_is_told(run):
    async def scenario():
        gate = asyncio.get_running_loop().create_future()
        task = shared_task(fails(gate))
        waiters = [asyncio.ensure_future(asyncio.shield(task)) for _ in range(2)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        gate.set_result(None)
        with pytest.raises(StorageFull):
            await waiters[1]

    run(scenario())


def test_an_opening_that_fails_long_after_nobody_waits_is_no_alarm(run, clock):
    async def scenario():
        heard, gate = alarms(), asyncio.get_running_loop().create_future()
        backend = MemoryBackend()
        backend.metadata.put = lambda *args: asyncio.ensure_future(fails(gate))
        factory = ManagedLedgerFactory(backend, clock)
        opening = asyncio.ensure_future(factory.open("log"))
        await some_turns()
        opening.cancel()
        await some_turns()
        gate.set_result(None)
        await some_turns()
        assert factory._opening == {}
        assert heard == []

    run(scenario())
