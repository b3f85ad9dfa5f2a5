"""A ledger accepts no more entries (a lost bookie has no replacement): the log continues in a new
one.

These tests use a storage in memory whose ledgers end on command; tests/bookkeeper has bookies.
"""

import asyncio
from functools import partial

import pytest

from managed_ledger.errors import LedgerClosed, LedgerEnded, StorageUnavailable
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.memory import MemoryBackend


class EndingLedgers(MemoryBackend):
    def __init__(self):
        super().__init__()
        self.ended = {}
        self.has_room = True

    def end(self, ledger_id, error=LedgerEnded):
        self.ended[ledger_id] = error

    def append(self, ledger_id, *arguments, **named):
        if (error := self.ended.get(ledger_id)) is not None:
            appended = arguments[3]
            asyncio.get_running_loop().call_soon(appended, error("lost a bookie"))
            return False
        return super().append(ledger_id, *arguments, **named)

    def new_ledger_id(self):
        if not self.has_room:
            raise StorageUnavailable("too few bookies")
        return super().new_ledger_id()


class Scene:
    def __init__(self, clock):
        self.backend = EndingLedgers()
        self.factory = ManagedLedgerFactory(self.backend, clock)

    async def open(self):
        self.log = await self.factory.open("log")
        return self

    def end(self, error=LedgerEnded):
        self.backend.end(self.log.ledgers()[-1].ledger_id, error)

    def end_of(self, ledger_id):
        self.backend.end(ledger_id)

    async def contents(self):
        found, position = [], EARLIEST
        while run := await self.log.read(position, self.log.last_confirmed, 100, 1 << 20):
            found += run.entries
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
        return found

    async def close(self):
        await self.factory.close()
        await self.backend.close()


def test_what_an_ended_ledger_does_not_take_goes_into_the_next_in_its_order(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        told = []
        await scene.log.append_one(b"kept")
        scene.end()
        for entries in ([b"a1", b"a2"], [b"b"]):
            done = partial(lambda name, first, error: told.append((name, first, error)), entries[0])
            scene.log.append(entries, [1] * len(entries), done, b"tag")
        await asyncio.sleep(0)
        assert scene.log.holds_appends, "the ledger has answered"
        scene.log.append([b"c"], [1], lambda first, error: told.append((b"c", first, error)))
        await scene.log.append_one(b"next")
        second = scene.log.ledgers()[-1].ledger_id
        assert told == [
            (b"a1", (second, 0), None),
            (b"b", (second, 2), None),
            (b"c", (second, 3), None),
        ]
        contents = [b"kept", b"a1", b"a2", b"b", b"c", b"next"]
        assert await scene.contents() == contents
        run_of_b = await scene.log.read(Position(second, 2), scene.log.last_confirmed, 1, 1 << 20)
        assert [each.tag for each in run_of_b.tags] == [b"tag"]
        await scene.log.close()
        await scene.open()
        assert await scene.contents() == contents
        await scene.close()

    run(scenario())


def test_successors_that_end_at_once_have_successors_too(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        scene.end()
        scene.backend.end(scene.log.ledgers()[-1].ledger_id + 1)
        appends = [asyncio.ensure_future(scene.log.append_one(b"%d" % n)) for n in range(3)]
        await asyncio.gather(*appends)
        assert await scene.contents() == [b"0", b"1", b"2"]
        assert len(scene.log.ledgers()) == 1
        await scene.close()

    run(scenario())


def test_successors_that_store_nothing_follow_each_other_ever_more_slowly(run, clock, monkeypatch):
    waited = []
    sleep = asyncio.sleep

    async def noted(seconds):
        waited.append(seconds)
        await sleep(0)

    async def scenario():
        scene = await Scene(clock).open()
        await scene.log.append_one(b"kept")
        first = scene.log.ledgers()[-1].ledger_id
        for ledger_id in range(first, first + 8):
            scene.end_of(ledger_id)
        monkeypatch.setattr(asyncio, "sleep", noted)
        await scene.log.append_one(b"next")
        monkeypatch.setattr(asyncio, "sleep", sleep)
        assert waited == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0], "the first one had stored something"
        assert await scene.contents() == [b"kept", b"next"]
        await scene.close()

    run(scenario())


def test_closing_waits_for_what_goes_into_the_next_ledger(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        scene.end()
        last = asyncio.ensure_future(scene.log.append_one(b"last"))
        await asyncio.sleep(0)
        await scene.log.close()
        await last
        await scene.open()
        assert await scene.contents() == [b"last"]
        await scene.close()

    run(scenario())


def test_a_ledger_that_ends_empty_leaves_the_list(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        first = scene.log.ledgers()[-1].ledger_id
        scene.end()
        await scene.log.append_one(b"kept")
        assert first not in scene.factory.ledger_ids("log")
        assert len(scene.log.ledgers()) == 1
        await scene.log.trim()
        assert first not in scene.backend.ledger_ids()
        await scene.close()

    run(scenario())


def test_without_a_successor_appends_are_refused_until_there_can_be_one(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        await scene.log.append_one(b"kept")
        scene.end()
        scene.backend.has_room = False
        lost = [asyncio.ensure_future(scene.log.append_one(b"lost")) for _ in range(2)]
        outcomes = await asyncio.gather(*lost, return_exceptions=True)
        assert [type(each) for each in outcomes] == [StorageUnavailable] * 2
        for _ in range(3):
            with pytest.raises(StorageUnavailable, match="too few bookies"):
                await scene.log.append_one(b"refused")
            clock.ms += 2000
        with pytest.raises(StorageUnavailable):
            await scene.log.roll_over()
        assert not scene.log.closed
        scene.backend.has_room = True
        clock.ms += 2000
        await scene.log.append_one(b"next")
        assert await scene.contents() == [b"kept", b"next"]
        await scene.close()

    run(scenario())


def test_a_full_ledger_is_written_on_while_there_can_be_no_other(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        await scene.log.append_one(b"first")
        scene.backend.has_room = False
        with pytest.raises(StorageUnavailable):
            await scene.log.roll_over()
        await scene.log.append_one(b"second")
        assert len(scene.log.ledgers()) == 1
        await scene.close()

    run(scenario())


def test_a_ledger_that_belongs_to_another_writer_ends_the_log(run, clock):
    async def scenario():
        scene = await Scene(clock).open()
        scene.end(LedgerClosed)
        with pytest.raises(LedgerClosed):
            await scene.log.append_one(b"lost")
        assert scene.log.closed
        assert scene.factory.opened("log") is None
        await scene.close()

    run(scenario())
