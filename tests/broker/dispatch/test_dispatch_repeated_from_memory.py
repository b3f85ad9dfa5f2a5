"""A client repeats from memory what its aborted transaction had acknowledged individually. The
broker gives it back besides, so the client has it twice.
"""

from typing import Any

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, FakeTopic, with_topic
from test_dispatch_transactions import ABORT, COMMIT, T1, T2, acknowledge, end

from managed_ledger.position import Position
from pybroker.base.errors import TransactionConflict
from pybroker.base.names import TxnId
from pybroker.broker.subscriptions.consumer import SubscriptionType

T3 = TxnId(0, 3)
SINGLE = pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])


async def given_back(topic: FakeTopic, kind: SubscriptionType) -> tuple[Any, Any, list[Position]]:
    """The second of four messages was acknowledged in T1, which has aborted; its consumer has no
    permits.
    """
    subscription = await topic.subscribe()
    consumer, sink = await topic.consumer(subscription, kind, 4)
    positions = await topic.publish(4)
    await acknowledge(subscription, T1, positions[1])
    await end(subscription, T1, ABORT)
    await topic.settled()
    assert sink.take() == [0, 1, 2, 3]
    return subscription, consumer, positions


async def given_late(topic: FakeTopic, subscription: Any, consumer: Any) -> None:
    subscription.flow(consumer, 1)
    await topic.settled()
    assert consumer.sink.take() == [1]


@SINGLE
@pytest.mark.parametrize("late_first", [True, False])
def test_the_late_delivery_is_not_consumed_by_another_transaction(
    kind: SubscriptionType, late_first: bool
) -> None:
    """Whether it came before the acknowledgement or after: until the client drops what it has."""

    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await given_back(topic, kind)
        if late_first:
            await given_late(topic, subscription, consumer)
        await acknowledge(subscription, T2, positions[1], cumulative=True)
        if not late_first:
            await given_late(topic, subscription, consumer)
        await end(subscription, T2, COMMIT)
        with pytest.raises(TransactionConflict):
            await acknowledge(subscription, T3, positions[3], cumulative=True)
        subscription.redeliver(consumer, None)
        await acknowledge(subscription, T3, positions[3], cumulative=True)

    with_topic(scenario)


@SINGLE
def test_nor_by_the_same_one(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await given_back(topic, kind)
        await acknowledge(subscription, T2, positions[1], cumulative=True)
        await given_late(topic, subscription, consumer)
        with pytest.raises(TransactionConflict):
            await acknowledge(subscription, T2, positions[2], cumulative=True)

    with_topic(scenario)


@SINGLE
def test_an_abort_leaves_no_doubt(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await given_back(topic, kind)
        await acknowledge(subscription, T2, positions[1], cumulative=True)
        await given_late(topic, subscription, consumer)
        await end(subscription, T2, ABORT)
        await acknowledge(subscription, T3, positions[1], cumulative=True)

    with_topic(scenario)


@SINGLE
def test_what_does_not_come_late_is_in_doubt_for_nobody(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await given_back(topic, kind)
        await acknowledge(subscription, T2, positions[1], cumulative=True)
        await end(subscription, T2, COMMIT)
        subscription.flow(consumer, 1)
        await topic.settled()
        assert consumer.sink.take() == []
        await acknowledge(subscription, T3, positions[3], cumulative=True)

    with_topic(scenario)


@SINGLE
def test_whoever_waits_for_it_and_goes_on_behind_it_is_not_refused(kind: SubscriptionType) -> None:
    """An acknowledgement of something that was given after it means the late delivery."""

    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, _ = await given_back(topic, kind)
        await given_late(topic, subscription, consumer)
        (after,) = await topic.publish(1)
        subscription.flow(consumer, 2)
        await topic.settled()
        assert consumer.sink.take() == [4]
        await acknowledge(subscription, T2, after, cumulative=True)
        await end(subscription, T2, COMMIT)
        (last,) = await topic.publish(1)
        await topic.settled()
        await acknowledge(subscription, T3, last, cumulative=True)

    with_topic(scenario)
