"""Delayed delivery: which messages wait, which do not, and what happens in between."""

from dataclasses import replace
from typing import Any

import pytest
from delayed_world import BY_TIME, Topic, run
from dispatch_fakes import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    KEYS,
    SHARED,
    key_of,
)

from managed_ledger.position import Position
from pybroker.broker.dispatch import delayed, key_shared
from pybroker.broker.dispatch.delayed_account import DelayedAccount
from pybroker.broker.subscriptions.consumer import SubscriptionType
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

TICK_S = 1.0


@BY_TIME
def test_a_message_comes_when_its_time_has_come_and_not_before(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, kind, 100)
        await topic.delayed(30, None, 10, None, 20)
        assert sink.take() == [1, 3]
        assert subscription.dispatch.delayed_messages == 3
        await topic.after(8.9)
        assert sink.take() == []
        for entry_id in (2, 4, 0):
            await topic.after(1.1)
            assert [(m.position.entry_id, m.redelivery_count) for m in sink.received] == [
                (entry_id, 0)
            ]
            sink.take()
            await topic.after(8.9)
        assert subscription.dispatch.delayed_messages == 0

    run(scenario)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_exclusive_and_failover_deliver_at_once(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, kind, 100)
        await topic.delayed(30, None)
        assert sink.take() == [0, 1]
        assert subscription.dispatch.delayed_messages == 0

    run(scenario)


@BY_TIME
def test_switched_off_all_is_delivered_at_once(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        _, sink = await topic.consumer(await topic.subscribe(), kind, 100)
        await topic.delayed(30, None)
        assert sink.take() == [0, 1]

    run(scenario, delayed_delivery_enabled=False)


@BY_TIME
def test_what_waits_comes_at_once_when_it_is_switched_off(kind: SubscriptionType) -> None:
    """Messages published after it is switched on again wait."""

    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, kind, 10_000)
        positions = await topic.delayed(*[3600.0] * 3000, None)
        assert (sink.take(), subscription.dispatch.delayed_messages) == ([3000], 3000)
        dispatcher: Any = subscription.dispatch.dispatcher
        dispatcher.restore(positions[:1])  # an aborted transaction had acknowledged it
        await topic.settled()
        assert sink.take() == []
        topic.config = replace(topic.config, delayed_delivery_enabled=False)
        subscription.dispatch.follow_policies()
        await topic.settled()
        assert (sorted(sink.take()), subscription.dispatch.delayed_messages) == (
            list(range(3000)),
            0,
        )
        topic.config = replace(topic.config, delayed_delivery_enabled=True)
        subscription.dispatch.follow_policies()
        await topic.delayed(30)
        assert sink.take() == []
        await topic.after(31)
        assert sink.take() == [3001]

    run(scenario)


@pytest.mark.parametrize(("strict", "late_ms"), [(False, 50), (True, 1)])
def test_no_message_is_early_and_a_tick_says_how_late_it_may_be(strict: bool, late_ms: int) -> None:
    async def scenario(topic: Topic) -> None:
        _, sink = await topic.consumer(await topic.subscribe(), SHARED, 100)
        delays_ms = (3000, 3001, 3049, 3250, 3500, 3999)
        await topic.delayed(*(delay_ms / 1000 for delay_ms in delays_ms))
        start_ms = topic.clock.now_ms()
        came: dict[int, int] = {}
        while len(came) < len(delays_ms):
            await topic.after(0.001)
            came |= dict.fromkeys(sink.take(), topic.clock.now_ms() - start_ms)
        for entry_id, delay_ms in enumerate(delays_ms):
            assert delay_ms <= came[entry_id] <= delay_ms + late_ms

    run(scenario, is_delayed_delivery_deliver_at_time_strict=strict)


@BY_TIME
def test_what_is_due_comes_behind_what_was_given_back_and_is_not_wanted(
    kind: SubscriptionType,
) -> None:
    """No later event would trigger a dispatch: the message is due already."""

    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 100)
        first, _ = await topic.delayed(None, 10)
        assert sink.take() == [0]
        sink.writable = False
        await topic.after(11)
        subscription.redeliver(consumer, [first])
        subscription.acknowledge(consumer, [first])
        sink.writable = True
        subscription.notify()
        await topic.settled()
        assert sink.take() == [1]

    run(scenario)


def test_what_is_due_comes_once_what_waited_for_its_consumer_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The waiting messages fill the look-ahead. All of them are acknowledged."""
    monkeypatch.setattr(key_shared, "MAX_WAITING_PER_CONSUMER", 1)

    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        slow, _ = await topic.consumer(subscription, KEY_SHARED, 1, name="slow")
        _, sink = await topic.consumer(subscription, KEY_SHARED, 100, name="fast")
        of_slow, of_fast = key_of("slow", "slow", "fast"), key_of("fast", "slow", "fast")
        await topic.delayed(10, key=of_fast)
        _, *waiting = await topic.delayed(None, None, None, key=of_slow)
        await topic.after(11)
        assert (sink.take(), subscription.dispatch.in_replay) == ([], 2)
        subscription.acknowledge(slow, waiting)
        subscription.flow(slow, 10)
        await topic.settled()
        assert (sink.take(), subscription.dispatch.in_replay) == ([0], 0)

    run(scenario)


@pytest.mark.slow
@BY_TIME
def test_a_batch_of_one_time_leaves_in_the_order_of_the_log(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        _, sink = await topic.consumer(await topic.subscribe(), kind, 10_000)
        await topic.delayed(*[5.01, 5.02] * 3000, key=KEYS[0])
        assert sink.take() == []
        await topic.after(6)
        assert sink.take() == list(range(6000))

    run(scenario)


@BY_TIME
def test_a_time_that_has_passed_delays_nothing(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        _, sink = await topic.consumer(await topic.subscribe(), kind, 100)
        await topic.delayed(-5, 0, None)
        assert sink.take() == [0, 1, 2]

    run(scenario)


@BY_TIME
def test_what_goes_beyond_any_clock_just_waits(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, kind, 100)
        beyond = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
        for deliver_at in (2**63 - 1, -(2**63), 0):
            beyond.deliver_at_time = deliver_at
            await topic.publish_entries([build_entry(beyond, b"")])
        assert sink.take() == [1, 2]
        await topic.after(1000)
        assert sink.take() == []
        assert subscription.dispatch.delayed_messages == 1

    run(scenario)


@BY_TIME
def test_few_permits_are_for_what_is_due(kind: SubscriptionType) -> None:
    """A consumer of one message at a time gets the due message after thousands that wait."""

    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        await topic.delayed(*[60.0] * 5000, None, 30.0, None)
        consumer, sink = await topic.consumer(subscription, kind, 1)
        await topic.after(0.1)
        assert sink.take() == [5000]
        subscription.flow(consumer, 1)
        await topic.after(0.1)
        assert sink.take() == [5002]
        await topic.after(31)
        subscription.flow(consumer, 1)
        await topic.after(30)
        assert sink.take() == [5001]
        for entry_id in range(20):
            subscription.flow(consumer, 1)
            await topic.after(0.1)
            assert sink.take() == [entry_id]

    run(scenario)


@BY_TIME
def test_entries_are_passed_once_however_permits_cut_a_run(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind)
        await topic.delayed(9, None, 9, 9, None, 9, None, None, 9)
        got: list[int] = []
        for _ in range(4):
            subscription.flow(consumer, 1)
            await topic.after(0.1)
            got += sink.take()
        assert got == [1, 4, 6, 7]
        subscription.flow(consumer, 100)
        await topic.after(10)
        assert sink.take() == [0, 2, 3, 5, 8]
        assert subscription.dispatch.delayed_messages == 0

    run(scenario)


@BY_TIME
def test_what_is_given_back_goes_out_again_at_once(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 100)
        positions = await topic.delayed(5, 50)
        await topic.after(5)
        assert sink.take() == [0]
        subscription.redeliver(consumer, positions)
        await topic.settled()
        assert [(m.position.entry_id, m.redelivery_count) for m in sink.received] == [(0, 1)]
        sink.take()
        await topic.after(50)
        assert sink.take() == [1]

    run(scenario)


@BY_TIME
def test_the_next_consumer_waits_for_the_same_times(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 100)
        await topic.delayed(5, 20, None)
        assert sink.take() == [2]
        subscription.remove_consumer(consumer)
        assert subscription.dispatch.delayed_messages == 0
        await topic.after(6)
        _, second = await topic.consumer(subscription, kind, 100)
        assert second.take() == [0, 2]
        await topic.after(15)
        assert (sink.take(), second.take()) == ([], [1])

    run(scenario)


@BY_TIME
def test_what_was_skipped_or_acknowledged_meanwhile_does_not_come(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 100)
        positions = await topic.delayed(5, 5)
        subscription.acknowledge(consumer, positions[:1])
        await topic.after(6)
        assert sink.take() == [1]
        await topic.delayed(5)
        await subscription.skip_all()
        assert subscription.dispatch.delayed_messages == 0
        await topic.after(6)
        assert sink.take() == []
        await topic.delayed(5)
        await topic.after(6)
        assert sink.take() == [3]

    run(scenario)


@BY_TIME
def test_what_is_skipped_is_delayed_no_more_and_what_stands_behind_it_is(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: Topic) -> None:
        account = DelayedAccount()
        topic.delays = replace(topic.delays, account=account)
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, kind, 100)
        positions = await topic.delayed(*[30.0] * 10, None)
        assert (sink.take(), subscription.dispatch.delayed_messages) == ([10], 10)
        bytes_of_ten = account.used_bytes
        dispatcher: Any = subscription.dispatch.dispatcher
        dispatcher.restore([positions[2], positions[7]])  # an aborted transaction held them
        await topic.settled()
        await subscription.skip_to(positions[5])
        assert subscription.dispatch.delayed_messages == 4
        assert account.used_bytes < bytes_of_ten
        await topic.after(31)
        assert (sorted(sink.take()), subscription.dispatch.delayed_messages) == ([6, 7, 8, 9], 0)
        assert account.used_bytes == 0

    run(scenario)


@BY_TIME
def test_a_seek_finds_them_again(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, kind, 100)
        positions = await topic.delayed(5, 50)
        await topic.after(6)
        assert sink.take() == [0]
        await subscription.seek(positions[0])
        _, again = await topic.consumer(subscription, kind, 100)
        assert again.take() == [0]
        await topic.after(50)
        assert again.take() == [1]

    run(scenario)


@BY_TIME
def test_an_open_transaction_holds_back_what_is_due(kind: SubscriptionType) -> None:
    """A commit releases the transaction's messages: those due by then come at once."""

    async def scenario(topic: Topic) -> None:
        _, sink = await topic.consumer(await topic.subscribe(), kind, 100)
        topic.limit = Position(topic.ledger.last_confirmed.ledger_id, -1)
        await topic.delayed(5, 30)
        await topic.after(20)
        assert sink.take() == []
        topic.limit = None
        await topic.changed()
        assert sink.take() == [0]
        await topic.after(10)
        assert sink.take() == [1]

    run(scenario)


@BY_TIME
def test_when_the_clock_is_set_what_is_due_comes_within_a_minute(kind: SubscriptionType) -> None:
    async def scenario(topic: Topic) -> None:
        _, sink = await topic.consumer(await topic.subscribe(), kind, 100)
        await topic.delayed(7200)
        clock: Any = topic.clock
        clock.wall_offset_ms += 7_200_000
        await topic.after(60)
        assert sink.take() == [0]

    run(scenario)


@BY_TIME
def test_reading_stops_where_too_much_waits(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "MAX_DELAYED", 3)

    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        for delay_s in (5.0, 6.0, 7.0, 8.0, None):
            await topic.delayed(delay_s)
        consumer, sink = await topic.consumer(subscription, kind)
        for _ in range(10):
            subscription.flow(consumer, 1)
            await topic.after(0.01)
        assert subscription.dispatch.delayed_messages <= 5
        await topic.after(60)
        assert sorted(sink.take()) == [0, 1, 2, 3, 4]

    run(scenario)


def test_a_tag_in_a_property_is_no_delay() -> None:
    async def scenario(topic: Topic) -> None:
        _, sink = await topic.consumer(await topic.subscribe(), SHARED, 100)
        entry = topic.entry(None, properties=[pb.KeyValue(key="k", value="x")])
        lying = entry.replace(b"k\x12\x01x", b"k\x12\x01\x01").replace(
            b"\x0a\x01k", b"\x0a\x01\x01"
        )
        metadata = topic.entry(None, ordering_key=b"\x98\x01\x98\x01")
        long = topic.entry(9, ordering_key=b"long" * 100)
        await topic.publish_entries([lying, metadata, long])
        assert sink.take() == [0, 1]
        await topic.after(10)
        assert sink.take() == [2]

    run(scenario)


def test_keys_stay_in_order_beside_what_is_delayed() -> None:
    """One of the two consumers is idle; the other still receives its keys."""

    async def scenario(topic: Topic) -> None:
        subscription = await topic.subscribe()
        slow, slow_sink = await topic.consumer(subscription, KEY_SHARED, 1, name="slow")
        _, fast_sink = await topic.consumer(subscription, KEY_SHARED, 10_000, name="fast")
        of_slow, of_fast = key_of("slow", "slow", "fast"), key_of("fast", "slow", "fast")
        for _ in range(10):
            await topic.delayed(5, None, key=of_slow)
            await topic.delayed(5, None, key=of_fast)
        fast_at_once, fast_later = [4 * i + 3 for i in range(10)], [4 * i + 2 for i in range(10)]
        assert (slow_sink.take(), fast_sink.take()) == ([1], fast_at_once)
        await topic.after(6)
        assert fast_sink.take() == fast_later
        subscription.flow(slow, 10_000)
        await topic.after(1)
        got = slow_sink.take()
        assert sorted(got) == sorted([4 * i for i in range(10)] + [4 * i + 1 for i in range(1, 10)])
        assert [i for i in got if i % 4 == 1] == [4 * i + 1 for i in range(1, 10)]
        assert [i for i in got if i % 4 == 0] == [4 * i for i in range(10)]

    run(scenario)
