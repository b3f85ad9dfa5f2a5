"""Termination of topics, over a memory backend."""

import asyncio

import pytest
from topics_world import Owner, World, run

from managed_ledger.position import EARLIEST
from pybroker.base.errors import ServiceNotReady
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest, SubscriptionType


def test_who_subscribes_while_a_topic_may_end_hears_of_no_end_that_does_not_come() -> None:
    told: list[Consumer] = []

    class Listener(Owner):
        def reached_end_of_topic(self, consumer: Consumer) -> None:
            told.append(consumer)

    async def scenario(world: World) -> None:
        topic = await world.topic()
        topic._on_the_way.count += 1  # a write that the disk never answers
        ending = asyncio.ensure_future(topic.terminate())
        await asyncio.sleep(1)
        subscription = await topic.subscription("s", EARLIEST, {}, create=True)
        consumer = Consumer(SubscribeRequest(1, "c"), Listener())
        await subscription.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
        subscription.flow(consumer, 1)
        with pytest.raises(ServiceNotReady, match="were not written"):
            await ending
        await asyncio.sleep(1)
        assert not told
        topic._on_the_way.count -= 1
        await topic.terminate()
        await asyncio.sleep(1)
        assert told == [consumer]

    run(scenario)


def test_who_ends_a_topic_that_is_being_ended_shares_the_outcome() -> None:
    """Otherwise the first one's failure would admit messages before the second one's end."""

    async def scenario(world: World) -> None:
        topic = await world.topic()
        producer = await world.producer(topic)
        topic._on_the_way.count += 1
        first = asyncio.ensure_future(topic.terminate())
        await asyncio.sleep(5)
        second = asyncio.ensure_future(topic.terminate())
        await asyncio.sleep(6)
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ServiceNotReady] * 2
        assert outcomes[0] is outcomes[1]
        topic._on_the_way.count -= 1
        assert not topic.terminated
        await topic.producers.remove(producer)

    run(scenario)
