"""BookKeeper's auto-recovery moves entries of ledgers that a broker already knows."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from sim_ledger import SESSION_MS
from sim_machines import FIRST_PORT, Machines
from sim_zookeeper import ADDRESS

from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.bookies import BookieLimits
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.metadata_record import Segment
from pybroker.simulation.events import Weather
from pybroker.simulation.world import SimulatedClock, World

LIMITS = BookieLimits(connect_timeout_s=1.0, add_timeout_s=1.0, read_timeout_s=1.0)
ENTRIES = [b"a", b"b", b"c"]


class Moving:
    """A broker with a ledger on two of four bookies."""

    def __init__(self, is_closed: bool) -> None:
        self.world = World("moved entries", Weather())
        self.machines = Machines(self.world, 4)
        self.broker = self.machines.node("broker")
        self.call = partial(self.world.call, self.broker)
        self.call(self._open())
        self.call(self._write(is_closed))

    async def _open(self) -> None:
        clock, rng = SimulatedClock(self.world), self.world.stream("broker")
        config = ClusterConfig(session_timeout_ms=SESSION_MS, limits=LIMITS)
        self.backend = BookKeeperBackend(ADDRESS, clock, rng, config)
        await self.backend.open()
        while len(self.backend._client.bookies.registered) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _write(self, is_closed: bool) -> None:
        self.ledger_id = self.backend.new_ledger_id()
        await self.backend.metadata.put("log", b"", -1, new_ledger_id=self.ledger_id)
        done = asyncio.get_running_loop().create_future()
        self.backend.append(self.ledger_id, 0, ENTRIES, [1] * 3, lambda _: done.set_result(None))
        await done
        if is_closed:
            await self.backend.close_ledger(self.ledger_id)
        self.backend._tails.drop(self.ledger_id)

    def read(self) -> EntryRun:
        return self.call(self.backend.read(self.ledger_id, 0, 2, 100, 1000))

    async def _heal(self, is_closed: bool) -> list[int]:
        """Move the entries as auto-recovery does; returns the ports of their former bookies."""
        store, disks = self.backend._store, self.machines.disks
        found = await store.get(self.ledger_id)
        (segment,) = found.metadata.segments
        held = [int(each.rpartition(":")[2]) for each in segment.bookies]
        others = [port for port in disks if port not in held]
        for port in others:
            self._copy(held[0], port)
        healed = Segment(0, tuple(f"127.0.0.1:{port}" for port in others))
        newest = () if is_closed else (Segment(3, segment.bookies),)
        changed = replace(found.metadata, segments=(healed, *newest))
        await store.set(self.ledger_id, changed, found.version)
        return held

    def _copy(self, source: int, target: int) -> None:
        copied = self.machines.disks[source].ledgers[self.ledger_id].copy()
        self.machines.disks[target].ledgers[self.ledger_id] = copied
        self.machines.crash_bookie(target, False, 0.01)

    def heal(self, is_closed: bool) -> None:
        """Move the entries, then take the bookies that had them out of service."""
        held = self.call(self._heal(is_closed))
        self.world.sleep(5.0)
        self.take_out(held)

    def take_out(self, ports: list[int]) -> None:
        for port in ports:
            self.machines.bookies[port].crash()
        self.world.sleep(5.0)


@pytest.fixture(params=[True, False], ids=["closed", "open"])
def is_closed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def moving(is_closed: bool) -> Iterator[Moving]:
    logging.disable(logging.WARNING)
    moving = Moving(is_closed)
    yield moving
    moving.world.close()
    logging.disable(logging.NOTSET)


def test_entries_that_auto_recovery_has_moved_are_found(moving, is_closed):
    assert list(moving.read().entries) == ENTRIES
    moving.heal(is_closed)
    assert list(moving.read().entries) == ENTRIES
    assert list(moving.read().entries) == ENTRIES


def test_entries_whose_bookies_are_all_down_are_asked_for_again_later(moving):
    moving.take_out([FIRST_PORT + number for number in range(4)])
    with pytest.raises(BookieFailed):
        moving.read()
