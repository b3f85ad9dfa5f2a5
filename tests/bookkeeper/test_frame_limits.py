"""Entries that bookies do not take because of their size, and large ones that they take."""

import asyncio

import pytest
from simulated_storage import life, make_backend, process, run  # noqa: F401

from managed_ledger.errors import EntryTooLarge
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import LATEST, Position
from managed_ledger.storage.bookkeeper.bookies import Bookies
from pybroker.simulation.world import SimulatedClock

LIMIT = 2 << 20
OVER, LARGE = b"o" * LIMIT, b"l" * (LIMIT - 1000)


class Lives:
    """Managed ledgers on bookies; notes the bookies that seem to have failed."""

    def __init__(self, life, make_backend, monkeypatch):  # noqa: F811
        self.life, self.backend = life, make_backend()
        self.factory = ManagedLedgerFactory(self.backend, SimulatedClock(life.world))
        self.suspected = []
        monkeypatch.setattr(Bookies, "suspect", lambda _, bookie, why="": self.note(bookie, why))

    def note(self, bookie, why):
        self.suspected.append((bookie, str(why)))

    async def __aenter__(self):
        await self.backend.open()
        await asyncio.sleep(1)
        return self

    async def __aexit__(self, *error):
        await self.factory.close()
        await self.backend.close()

    async def read(self, ledger):
        found, at = [], ledger.first_position
        while some := await ledger.read(at, LATEST, 100, 1 << 24):
            found += some.entries
            at = Position(some.ledger_id, some.first_entry_id + len(some.entries))
        return found


@pytest.fixture
def lives(life, make_backend, monkeypatch):  # noqa: F811
    return Lives(life, make_backend, monkeypatch)


def limit(lives, bookies):
    for disk in list(lives.life.disks.values())[:bookies]:
        disk.max_frame_bytes = LIMIT


def test_an_entry_that_no_bookie_takes_fails_alone(lives, run):  # noqa: F811
    async def scenario():
        limit(lives, 100)
        async with lives:
            ledger, other = [await lives.factory.open(name) for name in ("a/b/c/d", "a/b/c/e")]
            sent = (b"1", OVER, b"2", LARGE, OVER, b"3")
            done = [asyncio.ensure_future(ledger.append_one(each)) for each in sent]
            beside = [asyncio.ensure_future(other.append_one(b"x")) for _ in range(3)]
            found = await asyncio.gather(*done, return_exceptions=True)
            assert [type(each) is EntryTooLarge for each in found] == [
                each is OVER for each in sent
            ]
            await asyncio.gather(*beside)
            with pytest.raises(EntryTooLarge, match="nettyMaxFrameSizeBytes"):
                await ledger.append_one(OVER)
            await ledger.append_one(b"4")
            assert await lives.read(ledger) == [b"1", b"2", LARGE, b"3", b"4"]
            assert lives.suspected == []
            assert len(ledger.ledgers()) <= 2

    run(scenario())


def test_a_bookie_with_a_lower_limit_than_others_is_replaced(lives, run):  # noqa: F811
    assert len(lives.life.disks) > 2, "else no bookie takes its place"

    async def scenario():
        limit(lives, 1)
        async with lives:
            ledger = await lives.factory.open("a/b/c/d")
            for _ in range(3):
                await ledger.append_one(OVER)
            assert await lives.read(ledger) == [OVER] * 3
            assert lives.suspected == []

    run(scenario())


def test_a_limit_that_was_raised_is_found_out_again(lives, run):  # noqa: F811
    async def scenario():
        limit(lives, 100)
        async with lives:
            ledger = await lives.factory.open("a/b/c/d")
            with pytest.raises(EntryTooLarge):
                await ledger.append_one(OVER)
            for port, disk in lives.life.disks.items():
                disk.max_frame_bytes = 2 * LIMIT
                lives.life.crash_bookie(port, False, 0.1)
            await asyncio.sleep(30)
            await ledger.append_one(OVER)

    run(scenario())
