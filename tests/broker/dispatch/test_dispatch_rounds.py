"""Dispatch of any type: what a round is, who waits, what is not repeated."""

from collections.abc import Callable
from unittest.mock import patch

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
from pybroker.base.names import TxnId
from pybroker.broker.dispatch import entry_reader, key_shared, redelivery, shared, single
from pybroker.broker.dispatch.delivery import ROUND_STEPS
from pybroker.broker.subscriptions.consumer import SubscriptionType, UnackedEntries
from pybroker.broker.subscriptions.consumer_dispatch import ConsumerDispatch
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.transaction.txn_status import TxnAction

ENTRY_BYTES = 1000
MODULES = {
    EXCLUSIVE: single,
    SHARED: shared,
    KEY_SHARED: key_shared,
}
EVERY_TYPE = pytest.mark.parametrize("kind", MODULES)


@pytest.mark.parametrize(("round_bytes", "entries"), [(2 * ENTRY_BYTES, 2), (2001, 3), (1, 1)])
@EVERY_TYPE
def test_a_round_ends_when_its_bytes_are_out_and_others_have_their_turn(
    kind: SubscriptionType, round_bytes: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of 2001 bytes has one byte left after two entries: it includes the third."""
    monkeypatch.setattr(MODULES[kind], "ROUND_BYTES", round_bytes)

    async def scenario(topic: FakeTopic) -> None:
        first, second = await topic.subscribe("first"), await topic.subscribe("second")
        for _ in range(7):
            await topic.ledger.append_one(b"x" * ENTRY_BYTES, 1)
        served: list[RecordingSink] = []
        sinks = []
        for subscription in (first, second):
            consumer, sink = await topic.consumer(subscription, kind)
            sink.turns = served
            sinks.append(sink)
            consumer.add_permits(100)
        await topic.changed()
        for _ in range(7):
            await topic.settled()
        assert served[: 2 * entries] == [sink for sink in sinks for _ in range(entries)]
        assert [sink.entry_ids for sink in sinks] == [list(range(7))] * 2

    with_topic(scenario)


@EVERY_TYPE
def test_a_round_of_small_messages_ends_after_some_steps(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a round would hold ten thousand of them."""
    monkeypatch.setattr(entry_reader, "MAX_RUN_ENTRIES", 2)

    async def scenario(topic: FakeTopic) -> None:
        first, second = await topic.subscribe("first"), await topic.subscribe("second")
        for _ in range(20):
            await topic.ledger.append_one(b"x", 1)
        served: list[RecordingSink] = []
        sinks = []
        for subscription in (first, second):
            consumer, sink = await topic.consumer(subscription, kind)
            sink.turns = served
            sinks.append(sink)
            consumer.add_permits(100)
        for _ in range(4):
            await topic.changed()
        one, other = sinks
        assert served.index(other) == 2 * ROUND_STEPS
        assert one.entry_ids == other.entry_ids == list(range(20))

    with_topic(scenario)


@EVERY_TYPE
def test_what_nobody_sees_is_settled_though_nobody_can_take_anything(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, kind, permits=0)
        topic.limit = Position(0, -1)  # a transaction is open
        positions = await topic.publish(3)
        topic.limit = None
        await topic.hide(positions)
        assert subscription.cursor.mark_delete_position == positions[-1]

    with_topic(scenario)


@pytest.mark.parametrize(("permits", "published"), [(1, 3), (10, 1)], ids=["no room", "no more"])
@EVERY_TYPE
def test_nothing_to_deliver_or_nobody_to_take_it_is_no_reason_to_look_again(
    kind: SubscriptionType, permits: int, published: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, kind, permits)
        await topic.publish(published)
        looks = 0
        dispatcher = subscription.dispatch.dispatcher
        assert dispatcher is not None
        look = dispatcher.dispatch

        def counted() -> bool:
            nonlocal looks
            looks += 1
            return look()

        monkeypatch.setattr(dispatcher, "dispatch", counted)
        subscription.notify()
        for _ in range(5):
            await topic.settled()
        assert (sink.entry_ids, looks) == ([0], 1)

    with_topic(scenario)


@EVERY_TYPE
def test_a_consumer_without_permits_gets_nothing_of_what_was_read_too_far(
    kind: SubscriptionType,
) -> None:
    """The number of messages in a batch is known only after reading it."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        topic.ledger.warm = False
        consumer, sink = await topic.consumer(subscription, kind, 2)
        for _ in range(2):
            await topic.ledger.append_one(b"x", 2)
        await topic.changed()
        assert sink.entry_ids == [0]
        subscription.notify()
        await topic.settled()
        assert sink.entry_ids == [0]
        subscription.flow(consumer, 1)
        await topic.settled()
        assert sink.entry_ids == [0, 1]

    with_topic(scenario)


# -- limits of a whole subscription


def test_a_full_subscription_goes_on_when_half_is_acknowledged() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(20)
        assert sink.take() == [0, 1, 2, 3]
        subscription.acknowledge(consumer, positions[:1])
        await topic.settled()
        assert sink.take() == []
        subscription.acknowledge(consumer, positions[1:2])
        await topic.settled()
        assert sink.take() == [4, 5]

    with_topic(scenario, max_unacked_messages_per_subscription=4)


def test_a_subscription_gets_no_more_than_it_may_still_hold() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, SHARED, 100)
        await topic.publish(3)
        for _ in range(10):
            await topic.ledger.append_one(b"x", 1)
        await topic.changed()
        assert subscription.dispatch.unacked_messages == 5

    with_topic(scenario, max_unacked_messages_per_subscription=5)


def test_what_another_consumer_acknowledges_counts_for_the_holder() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, held = await topic.consumer(subscription, SHARED, 4, name="holds")
        positions = await topic.publish(4)
        assert held.take() == [0, 1, 2, 3]
        other, sink = await topic.consumer(subscription, SHARED, 100, name="acknowledges")
        await topic.publish(9)
        subscription.acknowledge(other, positions[:1])
        await topic.settled()
        assert sink.take() == []
        subscription.acknowledge(other, positions[1:2])
        await topic.settled()
        assert sink.take() == [4, 5]

    with_topic(scenario, max_unacked_messages_per_subscription=4)


@pytest.mark.parametrize("by_holder", [True, False])
def test_a_part_of_a_batch_counts_by_message(by_holder: bool) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        holder, held = await topic.consumer(subscription, SHARED, 4, name="holds")
        (batch,) = await topic.publish(1, batch=4)
        other, sink = await topic.consumer(subscription, SHARED, 100, name="other")
        await topic.publish(9)
        consumer = holder if by_holder else other
        for still_unacked, delivered in ((0b1110, []), (0b1100, [1, 2]), (0b1000, [])):
            subscription.acknowledge_indexes(consumer, batch, still_unacked, 4)
            await topic.settled()
            assert sink.take() == delivered
        assert (held.take(), holder.unacked.messages) == ([0], 1)
        subscription.acknowledge_indexes(consumer, batch, 0, 4)
        assert holder.unacked.messages == 0

    with_topic(scenario, max_unacked_messages_per_subscription=4)


def test_what_is_given_back_makes_room_for_as_much() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(9)
        assert sink.take() == [0, 1, 2, 3]
        subscription.redeliver(consumer, positions[:1])
        await topic.settled()
        assert sink.take() == []
        subscription.redeliver(consumer, positions[1:2])
        await topic.settled()
        assert sink.take() == [0, 1]
        assert subscription.dispatch.unacked_messages == 4

    with_topic(scenario, max_unacked_messages_per_subscription=4)


def test_skipping_everything_forgets_which_consumer_held_what() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(subscription, SHARED, 100, name="a")
        positions = await topic.publish(9)
        subscription.redeliver(a, positions[:1])
        assert a_sink.take() == [0, 1, 2, 3]
        await subscription.skip_all()
        await topic.settled()
        assert (subscription.dispatch.unacked_messages, a.blocked) == (0, False)
        await topic.publish(5)
        assert a_sink.take() == [9, 10, 11, 12]

    with_topic(
        scenario, max_unacked_messages_per_subscription=4, max_unacked_messages_per_consumer=4
    )


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_an_abort_asks_each_consumer_once_whether_it_holds_what_is_given_back(
    kind: SubscriptionType,
) -> None:
    """With 200 consumers, an abort of 500 messages took 8 seconds."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        for name in "abcdefgh":
            await topic.consumer(subscription, kind, 100, name=name)
        positions = await topic.publish(10)
        await hold(subscription, positions)
        release = UnackedEntries.release
        with patch.object(UnackedEntries, "release", autospec=True, side_effect=release) as asked:
            await subscription.end_transaction(TxnId(0, 1), TxnAction.ABORT)  # type: ignore[misc]
        assert asked.call_count == 8

    with_topic(scenario)


# -- Exclusive and Failover


def test_an_aborted_acknowledgement_that_is_repeated_holds_nothing_up() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 2)
        positions = await topic.publish(4)
        assert subscription.dispatch.dispatcher is not None
        subscription.dispatch.dispatcher.restore(positions[:1])
        subscription.acknowledge_cumulative(consumer, positions[0])
        subscription.flow(consumer, 10)
        await topic.settled()
        assert sink.entry_ids == [0, 1, 2, 3]

    with_topic(scenario)


def test_a_new_active_consumer_gets_what_an_abort_gave_back_once() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, FAILOVER, 2, name="a")
        positions = await topic.publish(2)
        assert subscription.dispatch.dispatcher is not None
        subscription.dispatch.dispatcher.restore(positions[:1])
        _, sink = await topic.consumer(subscription, FAILOVER, 10, name="b")
        subscription.remove_consumer(first)
        await topic.settled()
        assert sink.entry_ids == [0, 1]

    with_topic(scenario)


async def hold(subscription: Subscription, positions: list[Position]) -> None:
    """Acknowledges the positions in an open transaction."""
    acks = [PendingAck(position) for position in positions]
    consumer = subscription.consumers[0]
    await subscription.acknowledge_in_transaction(consumer, TxnId(0, 1), acks, False)


def least_in_each_dispatch(
    monkeypatch: pytest.MonkeyPatch, left: Callable[[ConsumerDispatch], int]
) -> list[int]:
    """By how much each dispatch lowers `left`; the list grows with each one."""
    passed: list[int] = []
    once = ConsumerDispatch._dispatch

    def counted(dispatch: ConsumerDispatch) -> None:
        before = left(dispatch)
        once(dispatch)
        passed.append(before - left(dispatch))

    monkeypatch.setattr(ConsumerDispatch, "_dispatch", counted)
    return passed


@EVERY_TYPE
def test_a_round_passes_no_more_than_some_entries_that_a_transaction_holds(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a million of them, all in memory."""
    monkeypatch.setattr(entry_reader, "MAX_RUN_ENTRIES", 2)

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, kind)
        positions = await topic.publish(40)
        await hold(subscription, positions[:-1])
        subscription.remove_consumer(consumer)
        passed = least_in_each_dispatch(monkeypatch, lambda it: -it.reader.position.entry_id)
        _, sink = await topic.consumer(subscription, kind, 100)
        while not sink.entry_ids:
            await topic.settled()
        assert sink.entry_ids == [39]
        assert 0 < max(passed) <= 2 * ROUND_STEPS

    with_topic(scenario)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_round_passes_no_more_than_some_entries_that_wait_for_nobody_any_more(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "MAX_RUN_ENTRIES", 2)

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 40)
        positions = await topic.publish(40)
        await topic.changed()
        assert sink.take() == list(range(40))
        subscription.redeliver(consumer, None)
        await hold(subscription, positions[:-1])
        passed = least_in_each_dispatch(monkeypatch, lambda it: it.in_replay)
        subscription.flow(consumer, 100)
        while not sink.entry_ids:
            await topic.settled()
        assert sink.entry_ids == [39]
        assert 0 < max(passed) <= 2 * ROUND_STEPS

    with_topic(scenario)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_comes_again_behind_a_withheld_entry_is_not_lost_where_reading_ends_with_that(
    kind: SubscriptionType,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        positions = await topic.publish(3)
        consumer, sink = await topic.consumer(subscription, kind, permits=3)
        subscription.redeliver(consumer, None)
        acks = [PendingAck(positions[0])]
        await subscription.acknowledge_in_transaction(consumer, TxnId(0, 1), acks, False)
        sink.take()
        topic.ledger.most_entries = 1
        subscription.flow(consumer, 10)
        await topic.settled()
        assert sink.take() == [1, 2]

    with_topic(scenario)
