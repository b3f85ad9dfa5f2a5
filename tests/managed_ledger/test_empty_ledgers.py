"""Whoever noted the end of an empty log can tell later whether anything came and was deleted."""

import pytest
from test_ended_ledgers import Scene

from managed_ledger.empty_ledgers import EMPTY_LEDGERS, has_all_after
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import LedgerInfo, LedgerList, ledgers_key
from managed_ledger.storage.memory import MemoryBackend


class Log:
    def __init__(self, clock):
        self.backend, self.clock = MemoryBackend(), clock

    async def open(self):
        self.factory = ManagedLedgerFactory(self.backend, self.clock)
        self.log = await self.factory.open("log")
        return self

    async def reopen(self):
        await self.factory.close()
        return await self.open()

    def has_all_after(self, position):
        return has_all_after(position, self.log.ledgers(), self.log.properties)


@pytest.mark.parametrize("openings", [1, 2, 3])
def test_nothing_is_missing_after_an_empty_log_was_opened_again(run, clock, openings):
    async def scenario():
        scene = await Log(clock).open()
        start = scene.log.last_confirmed
        for _ in range(openings):
            await scene.reopen()
        assert start.ledger_id not in {info.ledger_id for info in scene.log.ledgers()}
        assert scene.has_all_after(start)
        await scene.log.append_one(b"came")
        await scene.reopen()
        assert scene.has_all_after(start)

    run(scenario())


def test_nothing_is_missing_while_an_older_ledger_is_there(run, clock):
    async def scenario():
        scene = await Log(clock).open()
        await scene.log.append_one(b"older")
        start = scene.log.last_confirmed
        for _ in range(2):
            await scene.reopen()
        assert EMPTY_LEDGERS not in scene.log.properties
        assert scene.has_all_after(start)

    run(scenario())


def test_what_came_and_was_deleted_is_missing(run, clock):
    async def scenario():
        scene = await Log(clock).open()
        start = scene.log.last_confirmed
        await scene.reopen()
        await scene.log.append_one(b"came")
        await scene.log.roll_over()
        await scene.log.trim()
        assert len(scene.log.ledgers()) == 1
        assert not scene.has_all_after(start)
        await scene.reopen()
        assert not scene.has_all_after(start)

    run(scenario())


def test_a_log_that_was_deleted_and_made_again_has_not_all(run, clock):
    async def scenario():
        scene = await Log(clock).open()
        start = scene.log.last_confirmed
        await scene.factory.delete("log")
        scene.log = await scene.factory.open("log")
        assert not scene.has_all_after(start)
        await scene.reopen()
        assert not scene.has_all_after(start)

    run(scenario())


def test_a_ledger_that_is_not_there_may_have_had_entries(run, clock):
    async def scenario():
        scene = Log(clock)
        listed = LedgerList((LedgerInfo(99, 0, 0, None),))
        await scene.backend.metadata.put(ledgers_key("log"), listed.encode())
        await scene.open()
        assert EMPTY_LEDGERS not in scene.log.properties

    run(scenario())


def test_the_first_ledger_may_end_empty(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        start = scene.log.last_confirmed
        scene.end()
        await scene.log.append_one(b"came")
        assert start.ledger_id != scene.log.ledgers()[0].ledger_id
        assert has_all_after(start, scene.log.ledgers(), scene.log.properties)
        await scene.close()

    run(scenario())
