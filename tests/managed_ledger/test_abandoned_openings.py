"""Openings of managed ledgers whose callers no longer wait."""

import asyncio
import gc

from virtual_loop import run_virtually

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import ledgers_key
from managed_ledger.storage.memory import MemoryBackend


def test_a_failed_opening_that_nobody_waits_for_any_more_is_no_alarm(run, clock):
    async def scenario():
        alarms: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: alarms.append(context))
        backend = MemoryBackend()
        await backend.metadata.put(ledgers_key("log"), b"\x07nonsense")
        factory = ManagedLedgerFactory(backend, clock)
        opening = asyncio.ensure_future(factory.open("log"))
        await asyncio.sleep(0)
        opening.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert factory._opening == {}
        gc.collect()
        assert alarms == []

    run(scenario())


def test_what_nobody_waits_for_any_more_is_closed_and_opened_anew_by_the_next(run, clock):
    async def scenario():
        factory = ManagedLedgerFactory(MemoryBackend(), clock)
        waiting = asyncio.ensure_future(factory.open("log"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait(factory._opening.values())
        assert factory.open_count == 0
        first, second = (asyncio.ensure_future(factory.open("log")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert not (await second).closed
        assert not factory._waiting

    run(scenario())


def test_what_is_opened_in_the_turn_in_which_its_waiter_is_cancelled_is_closed(run, clock):
    async def scenario():
        for someone_else in (False, True):
            factory = ManagedLedgerFactory(MemoryBackend(), clock)
            waiting = asyncio.ensure_future(factory.open("log"))
            await asyncio.sleep(0)
            (opening,) = factory._opening.values()
            opening.add_done_callback(lambda _, waiting=waiting: waiting.cancel())
            await asyncio.wait([opening])
            later = asyncio.ensure_future(factory.open("log")) if someone_else else None
            await asyncio.wait([waiting])
            await factory.openings_ended(lambda name: True)
            assert waiting.cancelled()
            if later is not None:
                await (await later).append_one(b"x")
            assert factory.open_count == someone_else
            assert factory._not_taken == {}

    run(scenario())


def test_a_request_while_an_unused_log_is_closed_gets_an_open_one(run, clock):
    async def scenario():
        for turns in range(20):
            factory = ManagedLedgerFactory(MemoryBackend(), clock)
            waiting = asyncio.ensure_future(factory.open("log"))
            await asyncio.sleep(0)
            waiting.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            ledger = await factory.open("log")
            await ledger.append_one(b"x")
            assert not ledger.closed

    run(scenario())


def test_the_wait_for_openings_has_a_limit(clock, caplog):
    async def scenario():
        factory = ManagedLedgerFactory(MemoryBackend(), clock)
        factory._opening["hangs"] = asyncio.ensure_future(asyncio.Event().wait())
        await factory.openings_ended(lambda name: name == "other")
        assert not caplog.messages
        await factory.openings_ended(lambda name: name == "hangs")
        assert caplog.messages == ["hangs is still being opened, and may fence its next writer"]

    run_virtually(scenario())
