"""Cumulative acknowledgements in transactions that abort: what they withheld comes again, once."""

import asyncio
from unittest.mock import patch

import pytest
from dispatch_fakes import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    KEYS,
    SHARED,
    FakeTopic,
    check_parked,
    key_of,
    owner_among,
    with_topic,
)
from test_dispatch_transactions import ABORT, COMMIT, T1, T2, acknowledge, end

from managed_ledger.errors import StorageFull
from pybroker.broker.consumer import SubscriptionType
from pybroker.broker.subscription import Subscription
from pybroker.errors import PersistenceError
from pybroker.transaction.pending_ack import PendingAck
from pybroker.transaction.snapshot_log import Done


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


def test_what_a_cumulative_acknowledgement_withheld_from_a_new_consumer_comes_unasked() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        subscription.remove_consumer(consumer)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [3]
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [0, 1, 2, 3]

    with_topic(scenario)


@pytest.mark.parametrize("still_unacked", [0, 0b1100])
def test_the_only_message_that_is_withheld_cumulatively_comes_unasked_too(
    still_unacked: int,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, FAILOVER, 100)
        (position,) = await topic.publish(1, batch=4)
        acks = [PendingAck(position, still_unacked, 4)]
        await subscription.acknowledge_in_transaction(consumer, T1, acks, cumulative=True)
        subscription.remove_consumer(consumer)
        _, sink = await topic.consumer(subscription, FAILOVER, 100)
        assert [each.unacked for each in sink.received] == ([(0b1100, 4)] if still_unacked else [])
        sink.take()
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert [(each.position, each.unacked) for each in sink.received] == [(position, None)]

    with_topic(scenario)


def test_what_a_committed_cumulative_acknowledgement_had_withheld_makes_nothing_come_again() -> (
    None
):
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[1], cumulative=True)
        subscription.remove_consumer(consumer)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [2, 3]
        await end(subscription, T1, COMMIT)
        await acknowledge(subscription, T2, positions[3])
        await end(subscription, T2, ABORT)
        await topic.settled()
        assert sink.take() == [3]

    with_topic(scenario)


def test_what_a_committed_part_of_a_batch_had_withheld_makes_nothing_come_again() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3, batch=4)
        acks = [PendingAck(positions[1], 0b1100, 4)]
        await subscription.acknowledge_in_transaction(consumer, T1, acks, cumulative=True)
        subscription.remove_consumer(consumer)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [1, 2]
        await end(subscription, T1, COMMIT)
        await acknowledge(subscription, T2, positions[2])
        await end(subscription, T2, ABORT)
        await topic.settled()
        assert sink.take() == [2]

    with_topic(scenario)


def test_what_a_cumulative_acknowledgement_withheld_that_was_not_written_comes_unasked() -> None:
    """Though the one before it, in the same transaction, stands."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[1], cumulative=True)
        written: list[Done] = []
        assert subscription.pending_acks is not None
        store = subscription.pending_acks._store
        with patch.object(store, "append", lambda record, done: written.append(done)):
            further = asyncio.ensure_future(
                acknowledge(subscription, T1, positions[3], cumulative=True)
            )
            await topic.settled()
        subscription.remove_consumer(consumer)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [4]
        written[0](StorageFull("no space left"))
        with pytest.raises(PersistenceError):
            await further
        await topic.settled()
        assert sink.take() == [2, 3, 4]

    with_topic(scenario)


@pytest.mark.parametrize("still_unacked", [0, 0b1100])
def test_what_one_abort_gives_back_while_it_is_withheld_cumulatively_comes_with_that_one_s(
    still_unacked: int,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3, batch=4)
        await acknowledge(subscription, T1, positions[1])
        subscription.remove_consumer(consumer)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [0, 2]
        acks = [PendingAck(positions[1], still_unacked, 4)]
        await subscription.acknowledge_in_transaction(consumer, T2, acks, cumulative=True)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == ([1] if still_unacked else [])
        await end(subscription, T2, ABORT)
        await topic.settled()
        assert sink.take() == [0, 1, 2]

    with_topic(scenario)


# What another type of consumers has begun with, when everything comes again after such an abort.


async def withheld_cumulatively(topic: FakeTopic, key: str = "") -> Subscription:
    """Entries 0 and 1, by a consumer that left."""
    subscription = await topic.subscribe()
    consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
    positions = await topic.publish(2, key=key)
    await acknowledge(subscription, T1, positions[1], cumulative=True)
    subscription.remove_consumer(consumer)
    return subscription


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_was_given_back_comes_once_after_a_cumulative_abort(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await withheld_cumulatively(topic)
        consumer, sink = await topic.consumer(subscription, kind, 100)
        await topic.publish(2)
        assert sink.take() == [2, 3]
        sink.writable = False
        subscription.redeliver(consumer, None)
        await end(subscription, T1, ABORT)
        sink.writable = True
        subscription.notify()
        await topic.settled()
        assert sink.take() == [0, 1, 2, 3]

    with_topic(scenario)


def test_what_waited_for_its_consumer_comes_once_after_a_cumulative_abort() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await withheld_cumulatively(topic, for_b := key_of("b", "a", "b"))
        a, a_sink = await topic.consumer(subscription, KEY_SHARED, 0, name="a")
        _, b_sink = await topic.consumer(subscription, KEY_SHARED, 100, name="b")
        await topic.publish_keys([key_of("a", "a", "b")] * 2 + [for_b])
        assert (a_sink.take(), b_sink.take()) == ([], [4])
        b_sink.writable = False
        await end(subscription, T1, ABORT)
        b_sink.writable = True
        subscription.flow(a, 100)
        await topic.settled()
        assert (a_sink.take(), b_sink.take()) == ([2, 3], [0, 1, 4])
        check_parked(subscription)

    with_topic(scenario)


def test_what_waited_for_a_former_owner_comes_once_after_a_cumulative_abort() -> None:
    moved = next(
        key
        for key in KEYS
        if [owner_among(*names)(key) for names in ("a", "ab", "abc")] == ["a", "b", "b"]
    )

    async def scenario(topic: FakeTopic) -> None:
        subscription = await withheld_cumulatively(topic, moved)
        await topic.consumer(subscription, KEY_SHARED, 100, name="a")
        await topic.publish_keys([moved])
        _, sink = await topic.consumer(subscription, KEY_SHARED, 100, name="b")
        await topic.publish_keys([moved])
        assert sink.take() == []
        await end(subscription, T1, ABORT)
        await topic.consumer(subscription, KEY_SHARED, 100, name="c")
        assert sink.take() == [0, 1, 2, 3]

    with_topic(scenario)
