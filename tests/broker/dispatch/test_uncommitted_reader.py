"""Subscriptions with read_uncommitted: aborted entries are left out everywhere after the abort."""

import asyncio
from typing import Any

import pytest
from dispatch_fakes import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    FakeTopic,
    RecordingSink,
    with_topic,
)

from managed_ledger.position import Position
from pybroker.broker.dispatch import uncommitted_reader
from pybroker.broker.subscriptions.consumer import SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription

ALL_KINDS = (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)
UNCOMMITTED = {"isolation.level": "read_uncommitted"}
kinds = pytest.mark.parametrize("kind", ALL_KINDS)


async def all_are_open(topic: FakeTopic, count: int = 4) -> tuple[Subscription, list[Position]]:
    """`count` entries that only read_uncommitted subscriptions may read."""
    subscription = await topic.subscribe(properties=UNCOMMITTED)
    positions = await topic.publish_keys(["a"] * count)
    topic.limit = positions[0].before
    return subscription, positions


def watched(subscription: Subscription) -> list[list[Position]]:
    """The positions settled from now on, a list for each call."""
    settled: list[list[Position]] = []
    reader: Any = subscription.reader
    settles = reader._on_settled

    def on_settled(entries: list[tuple[int, int]]) -> None:
        settled.append([Position(*each) for each in entries])
        settles(entries)

    reader._on_settled = on_settled
    return settled


async def swept(topic: FakeTopic) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    await topic.settled()


@kinds
def test_messages_of_open_transactions_are_delivered(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, _ = await all_are_open(topic)
        _, sink = await topic.consumer(subscription, kind, 10)
        assert sink.take() == [0, 1, 2, 3]

    with_topic(scenario)


@kinds
def test_what_is_aborted_before_there_are_permits_is_not_delivered(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, sink = await topic.consumer(subscription, kind, 1)
        assert sink.take() == [0]
        await topic.abort(positions[1:3])
        subscription.flow(consumer, 10)
        await topic.settled()
        assert sink.take() == [3]

    with_topic(scenario)


@kinds
def test_aborted_messages_are_not_redelivered_and_not_unacknowledged(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, sink = await topic.consumer(subscription, kind, 10)
        assert sink.take() == [0, 1, 2, 3]
        await topic.abort(positions[:3])
        await swept(topic)
        assert subscription.mark_delete_position == positions[2]
        assert subscription.backlog == 1
        assert subscription.dispatch.unacked_messages == (0 if kind.single_active else 1)
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.take() == [3]

    with_topic(scenario)


@pytest.mark.parametrize("kind", (SHARED, KEY_SHARED))
def test_what_waits_to_come_again_when_it_is_aborted_does_not_come(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, sink = await topic.consumer(subscription, kind, 4)
        assert sink.take() == [0, 1, 2, 3]
        subscription.redeliver(consumer, positions)  # without permits
        await topic.settled()
        await topic.abort(positions[1:3])
        subscription.flow(consumer, 10)
        await topic.settled()
        assert sink.take() == [0, 3]
        assert subscription.dispatch.in_replay == 0

    with_topic(scenario)


def test_a_key_is_free_again_once_its_message_is_aborted() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe(properties=UNCOMMITTED)
        first, first_got = await topic.consumer(subscription, KEY_SHARED, 100, name="first")
        keys = [f"key-{number}" for number in range(20)]
        positions = await topic.publish_keys(keys)
        assert len(first_got.take()) == 20
        topic.limit = positions[0].before
        _, second_got = await topic.consumer(subscription, KEY_SHARED, 100, name="second")
        await topic.publish_keys(keys)
        mine = set(first_got.take())
        assert second_got.take() == [], "its keys are held by the first one"
        await topic.abort(positions)
        await swept(topic)
        assert {*second_got.take()} == set(range(20, 40)) - mine
        assert first.unacked.messages == len(mine)

    with_topic(scenario)


def test_a_consumer_with_too_much_unacknowledged_goes_on_after_the_abort() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        _, sink = await topic.consumer(subscription, SHARED, 10)
        assert sink.take() == [0, 1]
        await topic.abort(positions[:2])
        await swept(topic)
        assert sink.take() == [2, 3]

    with_topic(scenario, max_unacked_messages_per_consumer=2)


@kinds
def test_a_whole_acknowledgement_of_what_is_open_lasts(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, _ = await topic.consumer(subscription, kind, 10)
        if kind.single_active:
            subscription.acknowledge_cumulative(consumer, positions[1])
        else:
            subscription.acknowledge(consumer, positions[:2])
        assert subscription.mark_delete_position == positions[1]
        topic.limit = None  # the transaction was committed
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert subscription.backlog == 2

    with_topic(scenario)


def test_acknowledging_behind_the_end_of_the_log_is_refused() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 10)
        subscription.acknowledge_cumulative(consumer, Position(positions[0].ledger_id, 1000))
        assert subscription.mark_delete_position == positions[-1]
        sink.take()
        await topic.publish()
        assert sink.take() == [4]

    with_topic(scenario)


def test_skipping_goes_up_to_the_end_of_the_log() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        await subscription.skip_all()
        assert subscription.mark_delete_position == positions[-1]
        committed = await topic.subscribe("committed")
        await committed.skip_all()
        assert committed.backlog == 4

    with_topic(scenario)


def test_the_backlog_is_right_at_once_and_without_a_consumer() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, _ = await topic.consumer(subscription, SHARED, 10)
        subscription.remove_consumer(consumer)
        await topic.abort(positions[1:3])
        assert subscription.backlog == 2
        _, sink = await topic.consumer(subscription, SHARED, 10)
        assert sink.take() == [0, 3]

    with_topic(scenario)


def test_settling_much_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncommitted_reader, "SETTLED_A_TURN", 3)

    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic, 10)
        _, sink = await topic.consumer(subscription, SHARED, 20)
        assert len(sink.take()) == 10
        await topic.abort(positions[:9:2])
        await topic.abort(positions[1:9:2])
        turns = 0
        while subscription.dispatch.unacked_messages > 1:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 100
        assert subscription.mark_delete_position == positions[8]

    with_topic(scenario)


def test_an_abort_over_several_ledgers_is_settled() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe(properties=UNCOMMITTED)
        positions = await topic.publish(3)
        await topic.ledger.roll_over()
        positions += await topic.publish(3)
        topic.limit = positions[0].before
        _, sink = await topic.consumer(subscription, SHARED, 20)
        assert len(sink.take()) == 6
        assert positions[0].ledger_id != positions[5].ledger_id
        await topic.abort(positions[:5])
        await swept(topic)
        assert (subscription.dispatch.unacked_messages, subscription.backlog) == (1, 1)

    with_topic(scenario)


def test_what_is_aborted_is_settled_once_and_a_few_entries_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uncommitted_reader, "SETTLED_A_TURN", 3)

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe(properties=UNCOMMITTED)
        positions = await topic.publish(2)
        await topic.ledger.roll_over()
        positions += await topic.publish(7)
        topic.limit = positions[0].before
        _, sink = await topic.consumer(subscription, SHARED, 6)
        assert len(sink.take()) == 6
        settled = watched(subscription)
        await topic.abort(positions)
        await swept(topic)
        assert settled == [positions[:2], positions[2:5], positions[5:8], positions[8:]]
        assert subscription.dispatch.unacked_messages == 0

    with_topic(scenario)


def test_what_nobody_has_read_yet_is_not_settled() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic, 8)
        _, sink = await topic.consumer(subscription, SHARED, 4)
        assert sink.take() == [0, 1, 2, 3]
        settled = watched(subscription)
        await topic.abort([*positions[:4], *positions[5:]])  # entry 4 waits for permits
        assert settled == [positions[:4]]

    with_topic(scenario)


def test_an_abort_of_what_nobody_has_read_settles_nothing() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        _, sink = await topic.consumer(subscription, SHARED, 2)
        assert sink.take() == [0, 1]
        settled = watched(subscription)
        await topic.abort(positions[2:])
        assert settled == []

    with_topic(scenario)


def test_what_is_read_again_in_any_case_is_not_settled() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 8)
        assert sink.take() == [0, 1, 2, 3]
        settled = watched(subscription)
        topic.hidden.hide(positions[0].ledger_id, 0, 2)
        subscription.reader.aborted(positions[0])
        subscription.redeliver(consumer, None)  # rewinds to the first one, in the same turn
        await swept(topic)
        assert settled == [] and sink.take() == [3]

    with_topic(scenario)


@pytest.mark.parametrize("kind", (SHARED, KEY_SHARED))
def test_what_waits_to_come_again_does_not_come_in_the_turn_of_the_abort(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, sink = await topic.consumer(subscription, kind, 4)
        assert sink.take() == [0, 1, 2, 3]
        subscription.redeliver(consumer, positions)  # without permits
        await topic.settled()
        topic.hidden.hide(positions[0].ledger_id, 1, 2)  # nothing is settled yet
        subscription.flow(consumer, 10)
        await topic.settled()
        assert sink.take() == [0, 3]

    with_topic(scenario)


def test_neither_aborted_nor_acknowledged_entries_are_wanted_again() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        consumer, _ = await topic.consumer(subscription, SHARED, 4)
        subscription.acknowledge(consumer, positions[:1])
        topic.hidden.hide(positions[1].ledger_id, 1, 1)
        wanted = [subscription.reader.wants(position) for position in positions]
        assert wanted == [False, False, True, True]

    with_topic(scenario)


def test_an_abort_while_the_subscription_goes_settles_nothing() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        _, sink = await topic.consumer(subscription, SHARED, 20)
        for position in positions[:2]:
            topic.hidden.hide(*position, position.entry_id)
        subscription.reader.aborted(positions[0])
        await subscription.discard()
        subscription.reader.aborted(positions[0])
        await swept(topic)
        assert len(sink.take()) == 4
        assert subscription.mark_delete_position < positions[0]

    with_topic(scenario)


def test_a_sink_without_room_gets_what_is_left_later() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, positions = await all_are_open(topic)
        sink = RecordingSink(writable=False)
        _, got = await topic.consumer(subscription, FAILOVER, 0)
        got.writable = sink.writable
        subscription.flow(subscription.consumers[0], 10)
        await topic.abort(positions[:3])
        got.writable = True
        subscription.notify()
        await topic.settled()
        assert got.take() == [3]

    with_topic(scenario)
