"""A split or a merge that is interrupted at any step: it has happened as a whole, or not at all."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from mortal_backend import Mortal
from topics_world import World
from virtual_loop import run_virtually

from managed_ledger.errors import ManagedLedgerError, StorageFailed
from managed_ledger.position import EARLIEST
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import TopicTerminated
from pybroker.base.names import any_topic
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import of_segment

ORDERS = any_topic("topic://public/default/orders")
Change = Callable[[World], Awaitable[Any]]


async def segment(world: World, number: int) -> Topic:
    record = world.topics.scalable.get(ORDERS)
    return await world.topic(of_segment(ORDERS, record.segments[number]))


async def begin(world: World) -> None:
    """Two segments, with a message and two subscriptions each, nobody connected."""
    await world.topics.scalable.create(ORDERS, 2)
    for number in range(2):
        topic = await segment(world, number)
        await topic.subscription("queue", EARLIEST, {}, create=True)
        await topic.subscription("stream", None, {"a": "b"}, create=True)
        await world.publish(topic, await world.producer(topic))


async def split(world: World) -> None:
    await world.topics.scalable.split(ORDERS, 0)


async def merge(world: World) -> None:
    await world.topics.scalable.merge(ORDERS, 0, 1)


async def dies_at(steps: int, change: Change) -> bool:
    """Whether the change was interrupted; checks what the next broker makes of it."""
    backend = MemoryBackend()
    await backend.open()
    mortal = Mortal(backend, steps)
    world = World(cast(MemoryBackend, mortal), BrokerConfig())
    await begin(world)
    mortal.counting = True
    try:
        await change(world)
    except StorageFailed:
        assert mortal.died
    was_interrupted = mortal.died
    mortal.died = True  # whatever the process still does, nothing of it is written
    for last in (world.topics.close, world.factory.close):
        with suppress(ManagedLedgerError):
            await last()
    after = World(backend, BrokerConfig())
    await check(after)
    await after.topics.close()
    await after.factory.close()
    await backend.close()
    return was_interrupted


async def check(world: World) -> None:
    record = await world.topics.scalable.settled(ORDERS)
    assert record.epoch in (0, 1)
    for each in record.sealed:
        parent = await segment(world, each.id)
        assert parent.ended and each.children
        with pytest.raises(TopicTerminated):
            await world.producer(parent)
    for each in record.active:
        topic = await segment(world, each.id)
        subscriptions = topic.subscriptions
        assert sorted(subscriptions) == ["queue", "stream"]
        assert subscriptions["stream"].cursor.properties == {"a": "b"}
        before = subscriptions["queue"].backlog
        await world.publish(topic, await world.producer(topic))
        assert subscriptions["queue"].backlog == before + 1
    for number in range(2):
        assert (await segment(world, number)).subscriptions["queue"].backlog >= 1, "kept"


@pytest.mark.parametrize("change", [split, merge])
def test_a_change_that_dies_at_any_step_has_happened_or_not(change: Change) -> None:
    async def go() -> None:
        steps = 0
        while await dies_at(steps, change):
            steps += 1
        assert steps > 5, "the record, the end of the parent, each child with its subscriptions"

    run_virtually(go())
