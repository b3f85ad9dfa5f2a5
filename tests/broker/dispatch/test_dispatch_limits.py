"""Limits of unacknowledged messages: when they change, and when delivery starts over."""

from typing import Any

import pytest
from dispatch_fakes import SHARED, FakeTopic, RecordingSink, with_topic

from managed_ledger.position import Position
from pybroker.broker.dispatch.shared import UnackedLimits
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.broker.subscriptions.subscription import Subscription


class Held:
    """A topic of ten messages, of which the consumer was given four."""

    def __init__(
        self,
        topic: FakeTopic,
        subscription: Subscription,
        consumer: Consumer,
        sink: RecordingSink,
        positions: list[Position],
    ) -> None:
        self.topic, self.subscription, self.consumer = topic, subscription, consumer
        self.sink, self.positions = sink, positions
        self.dispatcher: Any = subscription.dispatch.dispatcher

    async def given(self) -> list[int]:
        await self.topic.changed()
        return self.sink.take()

    async def given_with(self, per_consumer: int, per_subscription: int) -> list[int]:
        self.dispatcher.set_limits(UnackedLimits(per_consumer, per_subscription))
        return await self.given()

    async def given_after_acknowledging(self, *entry_ids: int) -> list[int]:
        """The acknowledgement alone must trigger the dispatch."""
        self.subscription.acknowledge(self.consumer, [self.positions[i] for i in entry_ids])
        await self.topic.settled()
        return self.sink.take()


async def held(topic: FakeTopic) -> Held:
    subscription = await topic.subscribe()
    consumer, sink = await topic.consumer(subscription, SHARED, 100)
    positions = await topic.publish(10)
    assert sink.take() == [0, 1, 2, 3]
    return Held(topic, subscription, consumer, sink, positions)


BOTH = pytest.mark.parametrize("of_consumer", [True, False])


def limits(of_consumer: bool, limit: int) -> tuple[int, int]:
    return (limit, 0) if of_consumer else (0, limit)


def config(of_consumer: bool) -> dict[str, int]:
    name = "consumer" if of_consumer else "subscription"
    return {f"max_unacked_messages_per_{name}": 4}


@BOTH
def test_a_higher_limit_lets_blocked_consumers_go_on(of_consumer: bool) -> None:
    async def scenario(topic: FakeTopic) -> None:
        world = await held(topic)
        assert await world.given_with(*limits(of_consumer, 6)) == [4, 5]

    with_topic(scenario, **config(of_consumer))


@BOTH
def test_without_a_limit_everything_goes_out(of_consumer: bool) -> None:
    async def scenario(topic: FakeTopic) -> None:
        world = await held(topic)
        assert await world.given_with(0, 0) == [4, 5, 6, 7, 8, 9]

    with_topic(scenario, **config(of_consumer))


@BOTH
@pytest.mark.parametrize("limit", [3, 4])
def test_who_holds_as_many_as_a_new_limit_allows_waits_until_half_of_it(
    of_consumer: bool, limit: int
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        world = await held(topic)
        assert await world.given_with(0, 0) == [4, 5, 6, 7, 8, 9]
        await world.given_after_acknowledging(*range(10 - limit))
        assert await world.given_with(*limits(of_consumer, limit)) == []
        await topic.publish(9)
        assert await world.given() == []
        assert await world.given_after_acknowledging(9) == []
        assert len(await world.given_after_acknowledging(8)) == limit - (limit - 2)

    with_topic(scenario, **config(of_consumer))


@BOTH
def test_a_limit_of_one_lets_the_next_go_when_the_one_is_acknowledged(of_consumer: bool) -> None:
    async def scenario(topic: FakeTopic) -> None:
        world = await held(topic)
        await world.given_with(0, 0)
        await world.given_after_acknowledging(*range(9))
        await world.given_with(*limits(of_consumer, 1))
        await topic.publish(2)
        assert await world.given() == []
        assert await world.given_after_acknowledging(9) == [10]

    with_topic(scenario, **config(of_consumer))


@BOTH
def test_what_was_skipped_makes_room_for_as_much(of_consumer: bool) -> None:
    async def scenario(topic: FakeTopic) -> None:
        world = await held(topic)
        await world.subscription.skip_to(world.positions[2])
        await topic.settled()
        assert world.sink.take() == [4, 5, 6]
        assert world.subscription.dispatch.unacked_messages == 4

    with_topic(scenario, **config(of_consumer))


@BOTH
def test_who_begins_anew_is_given_what_it_held_and_no_more_than_it_may_hold(
    of_consumer: bool,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        world = await held(topic)
        for _ in range(2):
            world.dispatcher.rewind()
            assert await world.given() == [0, 1, 2, 3]
            assert (
                world.consumer.unacked.messages == world.subscription.dispatch.unacked_messages == 4
            )

    with_topic(scenario, **config(of_consumer))
