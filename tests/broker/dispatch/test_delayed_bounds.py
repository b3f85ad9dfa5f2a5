"""Delayed delivery: how much memory waiting messages take, and what an abort gives back."""

from dataclasses import replace
from typing import Any

import pytest
from delayed_world import BY_TIME, Topic, run
from dispatch_fakes import FakeTopic, with_topic

from managed_ledger.position import Position
from pybroker.broker.dispatch.delayed_account import DelayedAccount
from pybroker.broker.dispatch.delayed_index import FRESH_BYTES
from pybroker.broker.subscriptions.consumer import SubscriptionType, UnackedEntries
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry


@BY_TIME
def test_the_delayed_messages_of_all_are_bounded_and_holders_of_few_go_on(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: Topic) -> None:
        account = DelayedAccount(8 * FRESH_BYTES)
        topic.delays = replace(topic.delays, account=account)
        greedy = await topic.subscribe("greedy")
        _, got = await topic.consumer(greedy, kind, 100)
        for _ in range(20):
            await topic.delayed(30)
        last = (await topic.delayed(None))[0]
        assert (greedy.dispatch.delayed_messages, got.take()) == (8, [])
        modest = await topic.subscribe("modest")
        modest.cursor.mark_delete(Position(last.ledger_id, last.entry_id - 3))
        _, also_got = await topic.consumer(modest, kind, 100)
        assert (modest.dispatch.delayed_messages, also_got.take()) == (2, [20])
        await topic.after(40)
        assert sorted(got.take()) == list(range(21))
        assert account.used_bytes == 0

    run(scenario)


def test_however_many_delay_messages_they_take_twice_the_bound_at_most() -> None:
    account, held = DelayedAccount(100_000), 0
    for _ in range(200):
        held = 0
        while account.has_room(held):
            account.changed(held, held + 10)
            held += 10
    assert 100_000 < account.used_bytes <= 200_000


@BY_TIME
def test_who_waits_for_room_goes_on_when_another_one_leaves(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        topic.delays = replace(topic.delays, account=DelayedAccount(16 * FRESH_BYTES))
        first, second = await topic.subscribe("first"), await topic.subscribe("second")
        consumer, _ = await topic.consumer(first, kind, 100)
        _, got = await topic.consumer(second, kind, 100)
        for _ in range(12):
            await topic.delayed(3000)
        await topic.delayed(None)
        delayed = [each.dispatch.delayed_messages for each in (first, second)]
        assert (delayed, got.take()) == ([8, 8], [])
        first.remove_consumer(consumer)
        await topic.after(0.01)
        delayed = [each.dispatch.delayed_messages for each in (first, second)]
        assert (delayed, got.take()) == ([0, 12], [12])

    run(scenario)


@BY_TIME
def test_what_an_aborted_transaction_acknowledged_before_its_time_comes_at_its_time(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        """Calls the dispatcher as an aborted transaction does."""
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 100)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
        metadata.deliver_at_time = topic.clock.now_ms() + 60_000
        position = await topic.ledger.append_one(build_entry(metadata, b""), 1)
        await topic.changed()
        assert subscription.dispatch.delayed_messages == 1
        dispatcher: Any = subscription.dispatch.dispatcher
        for _ in range(3):
            dispatcher.restore([position])
            await topic.changed()
            assert sink.take() == []
            assert subscription.dispatch.delayed_messages == 1
        topic.clock.ms += 60_000
        await topic.changed()
        assert sink.take() == [0]
        await topic.changed()
        assert sink.take() == []
        assert (subscription.dispatch.delayed_messages, consumer.unacked.messages) == (0, 1)

    with_topic(scenario)


@BY_TIME
def test_after_an_abort_each_consumer_is_asked_once_what_it_holds(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a thousand consumers and a thousand due messages."""
    asked = []
    among = UnackedEntries.among
    monkeypatch.setattr(
        UnackedEntries, "among", lambda *each: asked.append(each[0]) or among(*each)
    )

    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        sinks = [(await topic.consumer(subscription, kind, 100))[1] for _ in range(3)]
        positions = await topic.delayed(*[30.0] * 20)
        dispatcher: Any = subscription.dispatch.dispatcher
        dispatcher.restore(positions[:1])
        await topic.changed()
        await topic.after(31)
        assert sorted(entry for sink in sinks for entry in sink.take()) == list(range(20))
        assert len(asked) == 3

    run(scenario)
