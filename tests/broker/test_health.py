"""The health check really writes and reads, and says why it fails."""

import asyncio
from typing import Any

import pytest
from topics_world import World
from virtual_loop import run_virtually

from managed_ledger.errors import StorageFull
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import HEALTH_LOG
from pybroker.broker.health import KEPT_S, TIMEOUT_S, Health


class Disk(MemoryBackend):
    """Counts the groups that it writes; on request writes fail or wait."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = 0
        self.error: Exception | None = None
        self.hangs = False

    def _write(self, group: Any) -> "asyncio.Future[None]":
        self.groups += 1
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            done.set_exception(self.error)
        elif not self.hangs:
            done.set_result(None)
        return done


def run(scenario: Any) -> None:
    async def within() -> None:
        disk = Disk()
        await disk.open()
        world = World(disk, BrokerConfig())
        health = Health(world.factory)
        await scenario(health, disk, world)
        await health.close()

    run_virtually(within())


def test_a_broker_that_stores_and_reads_is_well() -> None:
    async def scenario(health: Health, disk: Disk, world: World) -> None:
        await health.check()
        assert disk.groups > 0

    run(scenario)


def test_who_asks_often_is_told_what_was_found_within_the_last_second() -> None:
    async def scenario(health: Health, disk: Disk, world: World) -> None:
        await health.check()
        before = disk.groups
        await asyncio.gather(*(health.check() for _ in range(1000)))
        assert disk.groups == before
        await asyncio.sleep(KEPT_S)
        await asyncio.gather(*(health.check() for _ in range(1000)))
        assert disk.groups == before + 1

    run(scenario)


def test_a_full_disk_is_told_with_its_sentence_and_so_is_its_end() -> None:
    async def scenario(health: Health, disk: Disk, world: World) -> None:
        await health.check()
        disk.error = StorageFull("the disk is full: delete something")
        await asyncio.sleep(KEPT_S)
        for _ in range(3):
            with pytest.raises(ServiceNotReady, match="the disk is full: delete something"):
                await health.check()
        disk.error = None
        await asyncio.sleep(KEPT_S)
        await health.check()

    run(scenario)


def test_it_is_not_well_while_larger_messages_are_refused() -> None:
    async def scenario(health: Health, disk: Disk, world: World) -> None:
        disk.fullness.refuse("there is room for small ones only", 0)
        with pytest.raises(ServiceNotReady, match="small ones only"):
            await health.check()

    run(scenario)


def test_a_disk_that_does_not_answer_is_told_in_time() -> None:
    async def scenario(health: Health, disk: Disk, world: World) -> None:
        await health.check()
        disk.hangs = True
        await asyncio.sleep(KEPT_S)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(ServiceNotReady, match="check the disk"):
            await health.check()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(TIMEOUT_S)

    run(scenario)


def test_a_caller_that_gives_up_stops_no_other() -> None:
    async def scenario(health: Health, disk: Disk, world: World) -> None:
        first, second = (asyncio.ensure_future(health.check()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second

    run(scenario)


def test_what_it_writes_is_no_topic_and_does_not_pile_up() -> None:
    async def scenario(health: Health, disk: Disk, world: World) -> None:
        for _ in range(1500):
            await health.check()
            await asyncio.sleep(KEPT_S)
        await asyncio.sleep(60)
        ledger = await world.factory.open(HEALTH_LOG)
        assert sum(info.entries for info in ledger.ledgers()) <= 1000
        assert (await world.topics.lists.get("pulsar/system")).names == []

    run(scenario)
