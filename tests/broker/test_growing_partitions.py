"""Partitioned topics get more partitions, with the subscriptions that the first one has."""

import asyncio

import pytest
from topics_world import ORDERS, World, run

from managed_ledger.position import EARLIEST
from pybroker.broker.tenants import Conflict, ImpossibleGrowth
from pybroker.names import TopicName

P0 = TopicName.parse("orders-partition-0")


def test_partitions_only_become_more() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        await world.topics.update_partitions(ORDERS, 4)
        with pytest.raises(ImpossibleGrowth):
            await world.topics.update_partitions(ORDERS, 3)
        with pytest.raises(Conflict):
            await world.topics.update_partitions(TopicName.parse("plain"), 3)
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
        await world.topics.update_partitions(ORDERS, 4)
        for index in range(1, 4):
            there = await subscribed(world, ORDERS.partition_at(index))
            assert there == {"audit": {"team": "billing"}}

    run(scenario)


def test_growth_that_was_interrupted_is_finished_when_it_is_asked_for_again() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        await (await world.topic(P0)).subscription("audit", None, {}, create=True)
        await world.tenants.set_partitions(ORDERS, 3)  # and no further
        await world.topics.update_partitions(ORDERS, 3)
        assert await subscribed(world, ORDERS.partition_at(2)) == {"audit": {}}

    run(scenario)


def test_partitions_that_nobody_subscribed_to_are_not_loaded_to_grow() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        await world.topics.update_partitions(ORDERS, 4)
        assert not world.topics.loaded_names()

    run(scenario)


def test_who_asks_while_partitions_are_added_hears_of_them_with_their_subscriptions() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 1)
        await (await world.topic(P0)).subscription("audit", None, {}, create=True)
        growing = asyncio.ensure_future(world.topics.update_partitions(ORDERS, 3))
        await asyncio.sleep(0)
        assert await world.topics.partitions_for_client(ORDERS, auto_create=False) == 3
        last = ORDERS.partition_at(2)
        assert world.factory.has_cursor(last.ledger_name, "audit")
        await growing

    run(scenario)
