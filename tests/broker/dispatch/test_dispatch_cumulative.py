"""Cumulative acknowledgements beside open transactions: none covers an undelivered message."""

import pytest
from dispatch_fakes import (
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    FakeTopic,
    RecordingSink,
    given_back,
    with_topic,
)
from test_dispatch_transactions import ABORT, COMMIT, T1, T2, acknowledge, end

from managed_ledger.position import LATEST, Position
from pybroker.base.errors import TransactionConflict
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.records import PendingAck

SINGLE = pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])


async def successor(
    topic: FakeTopic, subscription: Subscription, kind: SubscriptionType = EXCLUSIVE
) -> tuple[Consumer, RecordingSink]:
    """Replaces the only consumer, which its client closes, by a new one."""
    subscription.consumers[0].closed_by_client = True
    subscription.remove_consumer(subscription.consumers[0])
    return await topic.consumer(subscription, kind, 100)


def left(subscription: Subscription, *positions: Position) -> list[int]:
    """The ids of the entries that are not acknowledged."""
    return [at.entry_id for at in positions if not subscription.cursor.is_deleted(at)]


# What a transaction holds by a cumulative acknowledgement


def test_an_aborted_cumulative_acknowledgement_comes_at_the_clients_request() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(4)
        sink.take()
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == []
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.take() == [0, 1, 2, 3]

    with_topic(scenario)


@SINGLE
def test_a_successor_gets_what_an_open_transaction_holds_cumulatively(
    kind: SubscriptionType,
) -> None:
    """The successor's acknowledgement of 3 covers 0 to 2, so it must have received them."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, kind, 100)
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        _, sink = await successor(topic, subscription, kind)
        assert sink.take() == [0, 1, 2, 3]
        with pytest.raises(TransactionConflict, match="retry when it"):
            await acknowledge(subscription, T2, positions[3], cumulative=True)
        with pytest.raises(TransactionConflict, match="retry when it"):
            await acknowledge(subscription, T2, positions[1])
        await end(subscription, T1, ABORT)
        await acknowledge(subscription, T2, positions[3], cumulative=True)
        await end(subscription, T2, COMMIT)
        await topic.settled()
        assert sink.take() == []
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_successor_that_is_behind_goes_on_behind_what_was_committed() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        subscription.remove_consumer(subscription.consumers[0])
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 1)
        assert sink.take() == [0]
        await end(subscription, T1, COMMIT)
        subscription.flow(consumer, 100)
        await topic.settled()
        assert sink.take() == [3, 4]

    with_topic(scenario)


def test_a_successor_gets_the_whole_of_a_batch_that_is_held_cumulatively_in_part() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        (position,) = await topic.publish(1, batch=4)
        acks = [PendingAck(position, 0b1100, 4)]
        await subscription.acknowledge_in_transaction(consumer, T1, acks, cumulative=True)
        _, sink = await successor(topic, subscription)
        assert [(each.position, each.unacked) for each in sink.received] == [(position, None)]
        await end(subscription, T1, COMMIT)
        assert subscription.cursor.unacked_indexes(position) == 0b1100

    with_topic(scenario)


def test_a_successors_plain_acknowledgement_takes_effect_before_the_first_one_has_ended() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        consumer, _ = await successor(topic, subscription)
        subscription.acknowledge_cumulative(consumer, positions[0])
        subscription.acknowledge(consumer, [positions[2]])
        await end(subscription, T1, ABORT)
        assert left(subscription, *positions) == [1, 3, 4]

    with_topic(scenario)


@pytest.mark.parametrize("action", [COMMIT, ABORT])
def test_consumers_of_another_type_get_what_is_held_cumulatively(action: object) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await acknowledge(subscription, T1, positions[1], cumulative=True)
        _, sink = await successor(topic, subscription, SHARED)
        assert sink.take() == [0, 1, 2]
        await end(subscription, T1, action)  # type: ignore[arg-type]
        await topic.settled()
        assert sink.take() == []
        assert left(subscription, *positions) == ([2] if action is COMMIT else [0, 1, 2])

    with_topic(scenario)


def test_a_transaction_acknowledges_nothing_that_another_open_one_holds_back() -> None:
    """Its client cannot have received it, but may have learned its id elsewhere."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(2)
        topic.limit = positions[1]  # an open transaction's messages follow
        positions += await topic.publish(2)
        with pytest.raises(TransactionConflict, match="not delivered yet"):
            await acknowledge(subscription, T1, positions[3], cumulative=True)
        await acknowledge(subscription, T1, positions[1], cumulative=True)

    with_topic(scenario)


# What a transaction holds by single acknowledgements


async def passed_over(
    topic: FakeTopic, kind: SubscriptionType = EXCLUSIVE, batch: int = 1
) -> tuple[Subscription, Consumer, RecordingSink, list[Position]]:
    """T1 holds 1, and the consumer was given 0, 2, 3, 4 and 5."""
    subscription = await topic.subscribe()
    await topic.consumer(subscription, kind, 100)
    positions = await topic.publish(6, batch=batch)
    await acknowledge(subscription, T1, positions[1])
    consumer, sink = await successor(topic, subscription, kind)
    assert sink.take() == [0, 2, 3, 4, 5]
    return subscription, consumer, sink, positions


@SINGLE
@pytest.mark.parametrize("action", [COMMIT, ABORT])
def test_a_cumulative_acknowledgement_spares_what_an_open_transaction_holds(
    kind: SubscriptionType, action: object
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, sink, positions = await passed_over(topic, kind)
        for acknowledged in (0, 2, 4, 3):
            subscription.acknowledge_cumulative(consumer, positions[acknowledged])
        assert left(subscription, *positions) == [1, 5]
        await end(subscription, T1, action)  # type: ignore[arg-type]
        await topic.settled()
        assert sink.take() == ([] if action is COMMIT else [1])
        mark = subscription.cursor.mark_delete_position
        assert mark == (positions[4] if action is COMMIT else positions[0])

    with_topic(scenario)


@pytest.mark.parametrize("aborted_first", [True, False])
def test_a_transactions_cumulative_acknowledgement_spares_what_another_one_holds(
    aborted_first: bool,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, _, sink, positions = await passed_over(topic)
        await acknowledge(subscription, T2, positions[4], cumulative=True)
        for txn_id, action in [(T1, ABORT), (T2, COMMIT)][:: 1 if aborted_first else -1]:
            await end(subscription, txn_id, action)
        await topic.settled()
        assert sink.take() == [1]
        assert left(subscription, *positions) == [1, 5]

    with_topic(scenario)


def test_an_acknowledgement_that_was_sent_before_the_message_came_late_does_not_cover_it() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, sink, positions = await passed_over(topic)
        await end(subscription, T1, ABORT)
        subscription.acknowledge_cumulative(consumer, positions[3])  # 1 is still to come
        await topic.settled()
        assert sink.take() == [1]
        subscription.acknowledge_cumulative(consumer, positions[4])  # 1 may be on its way
        assert left(subscription, *positions) == [1, 5]
        await topic.publish(1)
        subscription.acknowledge_cumulative(consumer, positions[5].after)  # sent after 1
        assert left(subscription, *positions) == [1]  # but the client may have dropped 1
        subscription.acknowledge_cumulative(consumer, positions[1])  # the client has received 1
        assert subscription.backlog == 0
        assert not given_back(subscription)

    with_topic(scenario)


def test_an_acknowledgement_of_a_late_message_covers_it_and_what_came_late_before() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(6)
        await acknowledge(subscription, T1, *positions[1:4])
        consumer, sink = await successor(topic, subscription)
        subscription.acknowledge_cumulative(consumer, positions[5])
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [0, 4, 5, 1, 2, 3]
        subscription.acknowledge_cumulative(consumer, positions[2])
        assert left(subscription, *positions) == [3]
        subscription.acknowledge_cumulative(consumer, positions[3])
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_transaction_covers_what_came_late_only_if_it_acknowledges_what_came_behind() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, _, sink, positions = await passed_over(topic)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [1]
        with pytest.raises(TransactionConflict, match="ask for redelivery"):
            await acknowledge(subscription, T1, positions[5], cumulative=True)
        await topic.publish(1)
        await acknowledge(subscription, T2, positions[5].after, cumulative=True)
        await end(subscription, T2, COMMIT)
        assert subscription.backlog == 0

    with_topic(scenario)


def test_an_acknowledgement_from_before_the_consumer_came_back_covers_nothing_that_was_held() -> (
    None
):
    """A client may acknowledge on a new connection messages that it received on the old one."""

    async def scenario(topic: FakeTopic) -> None:
        subscription, _, _, positions = await passed_over(topic)
        subscription.remove_consumer(subscription.consumers[0])
        await end(subscription, T1, ABORT)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 2)
        assert sink.take() == [0, 1]
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [1, 5]
        subscription.flow(consumer, 100)
        await topic.settled()
        assert sink.take() == [5]
        subscription.acknowledge_cumulative(consumer, positions[5])
        assert left(subscription, *positions) == [1]
        subscription.acknowledge(consumer, [positions[1]])
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_consumer_that_is_not_active_any_more_covers_nothing_that_was_held() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, FAILOVER, 100, name="b")
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[1])
        second, sink = await topic.consumer(subscription, FAILOVER, 100, name="a")
        assert subscription.dispatch.active_consumer is second
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [0, 2, 3, 1]
        subscription.acknowledge_cumulative(first, positions[3])
        assert left(subscription, *positions) == [1]
        subscription.acknowledge_cumulative(second, positions[1])
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_consumer_that_was_active_before_may_mean_what_it_was_given_then() -> None:
    """Its plain acknowledgement spares the late message; in a transaction it is refused."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, sink = await topic.consumer(subscription, FAILOVER, 100, name="b")
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[1])
        second, _ = await topic.consumer(subscription, FAILOVER, 100, name="a")
        await end(subscription, T1, ABORT)
        sink.take()
        subscription.remove_consumer(second)
        await topic.settled()
        assert sink.take() == [0, 1, 2, 3]
        with pytest.raises(TransactionConflict, match="ask for redelivery"):
            await acknowledge(subscription, T2, positions[2], cumulative=True)
        subscription.acknowledge_cumulative(first, positions[2])
        assert left(subscription, *positions) == [1, 3]
        subscription.redeliver(first, None)
        await topic.settled()
        assert sink.take() == [1, 3]
        with pytest.raises(TransactionConflict, match="acknowledge it individually"):
            await acknowledge(subscription, T2, positions[3], cumulative=True)
        await acknowledge(subscription, T2, positions[1])
        await acknowledge(subscription, T2, positions[3], cumulative=True)
        await end(subscription, T2, COMMIT)
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_batch_that_came_in_part_and_then_late_is_covered_from_what_came_late() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3, batch=4)
        held = [PendingAck(positions[1], 0b0110, 4)]  # acknowledges 0 and 3
        await subscription.acknowledge_in_transaction(consumer, T1, held, cumulative=False)
        consumer, sink = await successor(topic, subscription)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [0, 1, 2, 1]
        subscription.acknowledge_cumulative(consumer, positions[1], 0b1100, 4)  # 1 came before
        assert subscription.cursor.unacked_indexes(positions[1]) == 0b1101
        subscription.acknowledge_cumulative(consumer, positions[1], 0b1110, 4)  # 0 was given late
        assert subscription.cursor.unacked_indexes(positions[1]) == 0b1100

    with_topic(scenario)


def test_what_came_late_and_is_held_again_is_spared_again() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, sink, positions = await passed_over(topic)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [1]
        await acknowledge(subscription, T2, positions[1])
        await topic.publish(1)
        subscription.acknowledge_cumulative(consumer, positions[5].after)
        assert left(subscription, *positions) == [1]
        await end(subscription, T2, ABORT)
        await topic.settled()
        assert sink.take() == [6, 1]
        assert left(subscription, *positions) == [1]

    with_topic(scenario)


def test_of_a_batch_the_messages_that_are_held_are_spared() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3, batch=4)
        held = [PendingAck(positions[1], 0b1101, 4)]
        await subscription.acknowledge_in_transaction(consumer, T1, held, cumulative=False)
        consumer, sink = await successor(topic, subscription)
        sink.take()
        subscription.acknowledge_cumulative(consumer, positions[1], 0b1000, 4)
        assert subscription.cursor.unacked_indexes(positions[1]) == 0b1010
        subscription.acknowledge_cumulative(consumer, positions[2])
        assert subscription.cursor.unacked_indexes(positions[1]) == 0b0010
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert [(each.position, each.unacked) for each in sink.received] == [
            (positions[1], (0b0010, 4))
        ]
        subscription.acknowledge_cumulative(consumer, positions[1])
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_transaction_takes_of_a_batch_what_its_consumer_was_given() -> None:
    """Official clients acknowledge the whole batch after processing their part of it."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        (position,) = await topic.publish(1, batch=4)
        held = [PendingAck(position, 0b1110, 4)]
        await subscription.acknowledge_in_transaction(consumer, T1, held, cumulative=False)
        await successor(topic, subscription)
        await acknowledge(subscription, T2, position)
        await end(subscription, T1, ABORT)
        await end(subscription, T2, COMMIT)
        assert subscription.cursor.unacked_indexes(position) == 0b0001

    with_topic(scenario)


def test_a_transaction_that_names_what_was_left_out_of_a_batch_conflicts_or_takes_it() -> None:
    """Its client received that message earlier, and must not be told that it is acknowledged."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        (position,) = await topic.publish(1, batch=3)
        first = [PendingAck(position, 0b110, 3)]
        await subscription.acknowledge_in_transaction(consumer, T1, first, cumulative=False)
        consumer, _ = await successor(topic, subscription)
        with pytest.raises(TransactionConflict):
            await subscription.acknowledge_in_transaction(consumer, T2, first, cumulative=False)
        consumer.permits = 0  # the consumer does not yet receive what the abort gives back
        await end(subscription, T1, ABORT)
        await subscription.acknowledge_in_transaction(consumer, T2, first, cumulative=False)
        await end(subscription, T2, COMMIT)
        assert subscription.cursor.unacked_indexes(position) == 0b110

    with_topic(scenario)


def test_what_was_passed_over_is_forgotten_when_it_is_acknowledged_otherwise() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, sink, positions = await passed_over(topic)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [1]
        subscription.acknowledge(consumer, [positions[1]])
        subscription.acknowledge_cumulative(consumer, positions[5])
        assert subscription.backlog == 0
        assert not given_back(subscription)

    with_topic(scenario)


def test_a_seek_begins_anew() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, _, _, positions = await passed_over(topic)
        await end(subscription, T1, ABORT)
        await subscription.seek(positions[0])
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [0, 1, 2, 3, 4, 5]
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [5]

    with_topic(scenario)


def test_a_cumulative_acknowledgement_does_not_reach_messages_of_open_transactions() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(2)
        topic.limit = positions[1]
        more = await topic.publish(2)
        subscription.acknowledge_cumulative(consumer, LATEST)
        assert left(subscription, *positions, *more) == [2, 3]

    with_topic(scenario)
