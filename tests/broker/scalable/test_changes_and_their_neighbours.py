"""What happens beside a split, a merge or a pruning: subscriptions, deletions, other owners."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from topics_world import World, run

from managed_ledger.errors import BadVersion, StorageFull
from managed_ledger.position import EARLIEST
from managed_ledger.storage.backend import KeyAt
from pybroker.base.names import TopicName, any_topic
from pybroker.broker.brokers.ownership import LAST_HASH, Bundle
from pybroker.broker.namespaces.tenants import scalable_key
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.pruning import Pruner, delete_pruned
from pybroker.broker.scalable.record import of_segment
from pybroker.broker.scalable.subscriptions import WholeSubscriptions

ORDERS = any_topic("topic://public/default/orders")


async def segment(world: World, number: int) -> Topic:
    record = world.topics.scalable.get(ORDERS)
    return await world.topic(of_segment(ORDERS, record.segments[number]))


async def publish(world: World, number: int) -> None:
    topic = await segment(world, number)
    producer = await world.producer(topic)
    await world.publish(topic, producer)
    await topic.producers.remove(producer)


async def subscribe(world: World, number: int, name: str = "s") -> None:
    """As SUBSCRIBE at the earliest message does."""
    topic = await segment(world, number)
    late = topic.terminated or name in topic.subscriptions
    made = await topic.subscription(name, EARLIEST, {}, create=True)
    await world.topics.scalable.subscribed(topic, made, EARLIEST, late)


async def backlogs(world: World, name: str = "s") -> dict[int, int | None]:
    """By segment; None: it does not have the subscription."""
    found = {}
    for number in world.topics.scalable.get(ORDERS).segments:
        there = (await segment(world, number)).subscriptions.get(name)
        found[number] = None if there is None else there.backlog
    return found


# -- pruning


def test_an_empty_segment_stays_while_an_ancestor_has_a_backlog() -> None:
    """Otherwise nothing would tell a stream consumer that the grandchildren come after it."""

    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS)
        await subscribe(world, 0)
        await publish(world, 0)
        await scalable.split(ORDERS, 0)
        await scalable.split(ORDERS, 1)
        assert await scalable.pruner.prune_unneeded(ORDERS) == []
        await (await segment(world, 0)).subscriptions["s"].skip_all()
        assert await scalable.pruner.prune_unneeded(ORDERS) == [0, 1], (
            "both at once, the ancestor first"
        )

    run(go)


@pytest.mark.parametrize("deduplicates", [True, False])
def test_with_deduplication_a_sealed_segment_stays_for_producers_that_come_back(
    deduplicates: bool,
) -> None:
    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS)
        await scalable.split(ORDERS, 0)
        if not deduplicates:
            assert await scalable.pruner.prune_unneeded(ORDERS) == [0]
            return
        assert await scalable.pruner.prune_unneeded(ORDERS) == []
        await asyncio.sleep(121)  # the broker prunes each minute
        assert 0 not in scalable.get(ORDERS).segments

    run(go, broker_deduplication_enabled=deduplicates)


def test_a_broker_that_lost_the_topic_deletes_no_segment_that_its_successor_made() -> None:
    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS)
        await scalable.split(ORDERS, 0)
        outdated = scalable.get(ORDERS)
        await scalable.split(ORDERS, 1)
        key = scalable_key(ORDERS)
        record = world.backend.metadata.get(key)
        assert record is not None
        before = KeyAt(key, record.version - 1)
        prune = partial(delete_pruned, world.topics, world.factory, ORDERS)
        with pytest.raises(BadVersion):
            await prune(outdated, before)
        await prune(scalable.get(ORDERS), KeyAt(key, record.version))
        for each in scalable.get(ORDERS).segments.values():
            assert world.exists(of_segment(ORDERS, each))

    run(go)


def test_pruning_goes_on_though_a_topic_is_deleted_while_another_one_is_pruned() -> None:
    async def go(world: World) -> None:
        one, two, three = (any_topic(f"topic://public/default/{each}") for each in range(3))
        pruned: list[TopicName] = []
        over = asyncio.Event()

        async def prune(pruner: Pruner, name: TopicName) -> None:
            pruned.append(name)
            pruner.forget(two)  # as its deletion does
            if name == three:
                over.set()

        with (
            patch.object(Pruner, "_prune_what_can_be", prune),
            patch("pybroker.broker.scalable.pruning._PRUNE_EVERY_S", 0),
        ):
            for each in (one, two, three):
                world.topics.scalable.pruner.add(each)
            async with asyncio.timeout(10):
                await over.wait()
        assert pruned == [one, three]

    run(go)


# -- subscriptions


class BesideASplit(WholeSubscriptions):
    """Segment 1 is split after the first segment's turn, the n-th time that all have theirs."""

    turns = 1

    async def each_segment(self, name: TopicName) -> AsyncIterator[Topic]:
        self.turns -= 1
        async for topic in super().each_segment(name):
            yield topic
            if not self.turns and self._scalable.get(name).epoch == 0:
                await self._scalable.split(name, 1)


def test_a_subscription_made_beside_a_split_is_on_all_segments() -> None:
    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS, 2)
        await BesideASplit(world.topics, scalable).create(ORDERS, "s", "QUEUE")
        await publish(world, 2)
        assert await backlogs(world) == {0: 0, 1: 0, 2: 1, 3: 0}

    run(go)


def test_a_subscription_deleted_beside_a_split_is_on_no_segment() -> None:
    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS, 2)
        await subscribe(world, 0)
        await subscribe(world, 1)
        whole = BesideASplit(world.topics, scalable)
        whole.turns = 2  # the first time looks for consumers
        await whole.delete(ORDERS, "s")
        assert await backlogs(world) == dict.fromkeys(range(4))

    run(go)


# -- deletion


def test_a_segment_that_begins_does_not_keep_its_topic_from_being_deleted() -> None:
    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS)
        await subscribe(world, 0)
        with patch.object(scalable, "_carry_out", _nothing):
            await scalable.split(ORDERS, 0)
        child = of_segment(ORDERS, scalable.get(ORDERS).segments[1])
        delete = world.topics.deletions.delete

        async def loading_beside(*args: Any) -> None:
            beginning = asyncio.ensure_future(world.topics.get(child, create=True))
            await asyncio.sleep(0)
            await delete(*args)
            await asyncio.wait([beginning])

        with patch.object(world.topics.deletions, "delete", loading_beside):
            async with asyncio.timeout(60):
                await scalable.delete(ORDERS, force=True)
        assert not world.exists(child)

    run(go)


async def _nothing(*_: object) -> None:
    pass


# -- other owners


def test_a_topic_that_comes_back_to_a_broker_is_carried_out_anew() -> None:
    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS)
        await scalable.split(ORDERS, 0)
        assert scalable.owned() == [ORDERS]
        await scalable._released(Bundle("public/other", 0, LAST_HASH))
        assert scalable.owned() == [ORDERS]
        await scalable._released(Bundle("public/default", 0, LAST_HASH))
        assert scalable.owned() == []
        await scalable.settled(ORDERS)
        assert scalable.owned() == [ORDERS]

    run(go)


def test_a_split_on_a_full_disk_is_carried_out_once_there_is_room() -> None:
    async def go(world: World) -> None:
        scalable = world.topics.scalable
        await scalable.create(ORDERS)
        full = patch.object(world.topics, "get", side_effect=StorageFull("no space"))
        with full, pytest.raises(StorageFull):
            await scalable.split(ORDERS, 0)
        await scalable.settled(ORDERS)
        await publish(world, 1)

    run(go)
