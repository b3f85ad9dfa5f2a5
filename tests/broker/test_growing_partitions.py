"""New partitions of a topic get the subscriptions of the first one."""

import asyncio
from typing import Any

import pytest
from topics_world import ORDERS, World, run

from managed_ledger.position import EARLIEST
from pybroker.admin.routes.property import change_properties
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict, ImpossibleGrowth
from pybroker.broker.persistent.topic import Topic

P0 = TopicName.parse("orders-partition-0")


def test_partitions_only_become_more() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        await world.topics.partitioned.grow(ORDERS, 4)
        with pytest.raises(ImpossibleGrowth):
            await world.topics.partitioned.grow(ORDERS, 3)
        with pytest.raises(Conflict):
            await world.topics.partitioned.grow(TopicName.parse("plain"), 3)
        assert world.tenants.partitions(ORDERS) == 4

    run(scenario)


async def subscribed(world: World, name: TopicName) -> dict[str, dict[str, str]]:
    topic = await world.topics.get(name)
    assert topic is not None
    return {each.name: dict(each.cursor.properties) for each in topic.subscriptions.values()}


def test_new_partitions_have_the_subscriptions_of_the_first_one() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        first = await world.topic(P0)
        await first.subscription("audit", None, {"team": "billing"}, create=True)
        await first.reader_subscription("reader", EARLIEST)
        await world.topics.partitioned.grow(ORDERS, 4)
        for index in range(1, 4):
            there = await subscribed(world, ORDERS.partition_at(index))
            assert there == {"audit": {"team": "billing"}}

    run(scenario)


def test_growth_that_was_interrupted_is_finished_when_it_is_asked_for_again() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        await (await world.topic(P0)).subscription("audit", None, {}, create=True)
        await world.tenants.set_partitions(ORDERS, 3)  # and stops there
        await world.topics.partitioned.grow(ORDERS, 3)
        assert await subscribed(world, ORDERS.partition_at(2)) == {"audit": {}}

    run(scenario)


def test_partitions_that_nobody_subscribed_to_are_not_loaded_to_grow() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        await world.topics.partitioned.grow(ORDERS, 4)
        assert not world.topics.loaded_names()

    run(scenario)


def test_who_asks_while_partitions_are_added_hears_of_them_with_their_subscriptions() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 1)
        await (await world.topic(P0)).subscription("audit", None, {}, create=True)
        growing = asyncio.ensure_future(world.topics.partitioned.grow(ORDERS, 3))
        await asyncio.sleep(0)
        assert await world.topics.partitions_for_client(ORDERS, auto_create=False) == 3
        last = ORDERS.partition_at(2)
        assert world.factory.has_cursor(last.ledger_name, "audit")
        await growing

    run(scenario)


def test_partitions_that_come_while_their_topic_is_about_to_be_deleted_go_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, disk_answers = Topic.open, asyncio.Event()

    async def slow_load(*what: Any) -> Topic:
        await disk_answers.wait()
        return await load(*what)

    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 1)
        await (await world.topic(P0)).subscription("audit", None, {}, create=True)
        await world.topics.unload(P0)
        monkeypatch.setattr(Topic, "open", slow_load)
        loading = asyncio.ensure_future(world.topics.get(P0))
        await asyncio.sleep(0)
        deleting = asyncio.ensure_future(world.topics.delete_partitioned(ORDERS, force=True))
        await asyncio.sleep(0)
        growing = asyncio.ensure_future(world.topics.partitioned.grow(ORDERS, 3))
        await asyncio.sleep(1)
        disk_answers.set()
        await asyncio.gather(loading, growing, deleting)
        assert world.factory.names("public/default/") == []
        assert world.tenants.partitions(ORDERS) == 0

    run(scenario)


def test_properties_that_are_set_while_partitions_come_take_none_away() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2, {"team": "billing"})
        growing = asyncio.ensure_future(world.topics.partitioned.grow(ORDERS, 4))
        await asyncio.sleep(0)
        await change_properties(world.topics, ORDERS, {"owner": "ada"})
        await growing
        assert world.tenants.partitions(ORDERS) == 4
        properties = world.tenants.partitioned_properties(ORDERS)
        assert properties == {"team": "billing", "owner": "ada"}

    run(scenario)


def test_properties_that_are_set_at_once_are_all_there() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        changes = [{"team": "billing"}, {"owner": "ada"}]
        await asyncio.gather(*(change_properties(world.topics, ORDERS, each) for each in changes))
        properties = world.tenants.partitioned_properties(ORDERS)
        assert properties == {"team": "billing", "owner": "ada"}

    run(scenario)
