"""Batches delivered in part and then whole: an acknowledgement does not say which it means."""

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, SHARED, FakeTopic, with_topic
from test_dispatch_cumulative import left, successor
from test_dispatch_transactions import ABORT, COMMIT, T1, T2, acknowledge, end

from managed_ledger.position import Position
from pybroker.base.errors import TransactionConflict
from pybroker.base.names import TxnId
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.records import PendingAck


async def batch_twice(
    topic: FakeTopic, kind: SubscriptionType = EXCLUSIVE
) -> tuple[Subscription, Consumer, Position]:
    """The consumer was given a batch of three without its first message. After T1's abort it was
    given that message; on Shared, the whole batch. It has acknowledged nothing.
    """
    subscription = await topic.subscribe()
    consumer, _ = await topic.consumer(subscription, kind, 100)
    (position,) = await topic.publish(1, batch=3)
    held = [PendingAck(position, 0b110, 3)]
    await subscription.acknowledge_in_transaction(consumer, T1, held, cumulative=False)
    consumer, sink = await successor(topic, subscription, kind)
    await end(subscription, T1, ABORT)
    await topic.settled()
    second = None if kind is SHARED else (0b001, 3)
    assert [each.unacked for each in sink.received] == [(0b110, 3), second]
    return subscription, consumer, position


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED])
def test_an_acknowledgement_of_a_batch_that_was_under_way_covers_nothing_that_came_later(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, position = await batch_twice(topic, kind)
        subscription.acknowledge(consumer, [position])  # perhaps meant for the first delivery
        left = 0b001 if kind is SHARED else None
        assert subscription.cursor.unacked_indexes(position) == left
        subscription.acknowledge(consumer, [position])
        assert subscription.backlog == 0
        assert not consumer.left_out
        assert consumer.unacked.messages == 0

    with_topic(scenario)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_who_asks_for_a_batch_again_acknowledges_it_once(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, position = await batch_twice(topic, kind)
        subscription.redeliver(consumer, [position])
        await topic.settled()
        subscription.acknowledge(consumer, [position])
        assert subscription.backlog == 0

    with_topic(scenario)


@pytest.mark.parametrize("cumulative", [True, False])
def test_a_transactions_acknowledgement_of_a_batch_that_came_twice_is_refused(
    cumulative: bool,
) -> None:
    """If it counted for the first delivery, processed messages might come again."""

    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, position = await batch_twice(topic)
        with pytest.raises(TransactionConflict, match="ask for redelivery"):
            await acknowledge(subscription, T2, position, cumulative=cumulative)
        assert subscription.cursor.unacked_indexes(position) is None
        subscription.redeliver(consumer, None)
        await topic.settled()
        await acknowledge(subscription, T2, position, cumulative=cumulative)
        await end(subscription, T2, COMMIT)
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_cumulative_acknowledgement_of_a_batch_that_was_under_way_covers_nothing_late() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, position = await batch_twice(topic)
        subscription.acknowledge_cumulative(consumer, position)
        assert subscription.cursor.unacked_indexes(position) == 0b001
        (last,) = await topic.publish(1)
        subscription.acknowledge_cumulative(consumer, last)  # its client may have dropped the batch
        assert left(subscription, position, last) == [0]
        subscription.acknowledge_cumulative(consumer, position)
        assert subscription.backlog == 0

    with_topic(scenario)


def test_what_was_given_of_a_batch_is_not_spared_because_another_part_of_it_comes_late() -> None:
    """Two transactions had held a message each. The consumer was given one of them in order."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        (batch,) = await topic.publish(1, batch=4)
        for txn_id, unacked in ((T1, 0b1011), (T2, 0b1101)):
            held = [PendingAck(batch, unacked, 4)]
            await subscription.acknowledge_in_transaction(first, txn_id, held, cumulative=False)
        await end(subscription, T1, ABORT)
        consumer, sink = await successor(topic, subscription)
        assert [each.unacked for each in sink.received] == [(0b1101, 4)]
        await end(subscription, T2, ABORT)
        up_to_the_third = [PendingAck(batch, 0b1000, 4)]
        third = TxnId(0, 3)
        with pytest.raises(TransactionConflict, match="ask for redelivery"):
            await subscription.acknowledge_in_transaction(
                consumer, third, up_to_the_third, cumulative=True
            )
        subscription.redeliver(consumer, None)
        await topic.settled()
        await subscription.acknowledge_in_transaction(
            consumer, third, up_to_the_third, cumulative=True
        )
        await end(subscription, third, COMMIT)
        assert subscription.cursor.unacked_indexes(batch) == 0b1000

    with_topic(scenario)
