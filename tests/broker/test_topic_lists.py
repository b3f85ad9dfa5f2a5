"""TopicLists: built once, then kept current as topics come and go."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dispatch_fakes import SteppedClock

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import PARTITIONED_PREFIX, Tenants
from pybroker.broker.topic_lists.lists import TopicList, TopicLists

NAMESPACE = "public/default"


class World:
    def __init__(self, backend: MemoryBackend) -> None:
        self.metadata = backend.metadata
        self.factory = ManagedLedgerFactory(backend, SteppedClock())
        self.tenants = Tenants(backend.metadata, BrokerConfig())
        self.lists = TopicLists(self.factory, backend.metadata, self.tenants)

    async def create(self, *names: str) -> None:
        for name in names:
            await self.factory.open(TopicName.parse(name).ledger_name)

    async def listed(self) -> list[str]:
        return [TopicName.parse(name).local for name in (await self.lists.get(NAMESPACE)).names]


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        world = World(backend)
        await scenario(world)
        await world.factory.close()
        await backend.close()

    asyncio.run(go())


def test_a_list_is_the_same_until_a_topic_comes_or_goes() -> None:
    async def scenario(world: World) -> None:
        await world.create("b", "d")
        first = await world.lists.get(NAMESPACE)
        assert await world.lists.get(NAMESPACE) is first
        (await world.factory.open(TopicName.parse("b").ledger_name)).set_property("k", "v")
        await asyncio.sleep(0)
        assert await world.lists.get(NAMESPACE) is first
        await world.create("a", "c", "e")
        assert await world.listed() == ["a", "b", "c", "d", "e"]
        await world.factory.delete(TopicName.parse("d").ledger_name)
        assert await world.listed() == ["a", "b", "c", "e"]
        assert (await world.lists.get(NAMESPACE)).hash != first.hash

    run(scenario)


def test_partitions_come_and_go_with_their_topic() -> None:
    async def scenario(world: World) -> None:
        await world.create("a")
        assert await world.listed() == ["a"]
        parted = TopicName.parse("parted")
        await world.tenants.set_partitions(parted, 2)
        assert await world.listed() == ["a", "parted-partition-0", "parted-partition-1"]
        await world.create("parted-partition-1")
        assert len(await world.listed()) == 3
        await world.factory.delete(parted.partition_at(1).ledger_name)
        assert len(await world.listed()) == 3  # it exists as part of the partitioned topic
        await world.metadata.delete(PARTITIONED_PREFIX + parted.ledger_name)
        assert await world.listed() == ["a"]

    run(scenario)


def test_others_have_the_loop_while_a_long_list_is_found_out() -> None:
    async def scenario(world: World) -> None:
        await world.tenants.set_partitions(TopicName.parse("parted"), 5000)
        finding = asyncio.ensure_future(world.lists.get(NAMESPACE))
        turns = 0
        while not finding.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 10

    run(scenario)


def test_what_comes_while_a_list_is_found_out_is_not_forgotten() -> None:
    async def scenario(world: World) -> None:
        await world.create("z")
        await world.tenants.set_partitions(TopicName.parse("parted"), 5000)
        finding = asyncio.ensure_future(world.lists.get(NAMESPACE))
        await asyncio.sleep(0)
        await world.create("a")
        await finding
        assert "a" in await world.listed()

    run(scenario)


def test_a_list_says_what_it_has() -> None:
    names = TopicList(["b", "d"])
    assert names.has("b") and not names.has("c")
    assert names.with_or_without("c").names == ["b", "c", "d"]
    assert names.with_or_without("d").names == ["b"]
    assert TopicList(["a", "b"]).hash == TopicList(["a"]).with_or_without("b").hash


def test_patterns_do_not_see_the_control_topics_of_spark() -> None:
    begin = "persistent://public/default/"
    users = [f"{begin}{name}" for name in ("__spar", "__sparks", "orders", "x/__spark-jobs")]
    own = [f"{begin}{name}" for name in ("__spark-jobs", "__spark-query-7-partition-0")]
    given = TopicList(sorted([f"non-{begin}a", *users, *own]))
    assert list(given.of_users.names) == sorted([f"non-{begin}a", *users])
    alone = TopicList(sorted(users))
    assert alone.of_users is alone
    assert TopicList(()).of_users.names == ()
    assert list(TopicList(own).of_users.names) == []
