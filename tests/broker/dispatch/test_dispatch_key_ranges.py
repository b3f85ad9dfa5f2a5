"""An Exclusive consumer or a reader with key ranges receives only messages in those ranges."""

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, KEYS, FakeTopic, RecordingSink, with_topic

from pybroker.base.errors import ConsumerAssignError
from pybroker.base.names import TxnId
from pybroker.broker.dispatch.hash_ring import RING_SIZE, slot_of
from pybroker.broker.dispatch.key_ranges import LOOK_AHEAD, ranges_of
from pybroker.broker.policies.dispatch_rate import DispatchPace, HeldBack
from pybroker.broker.policies.throttle import Throttle
from pybroker.broker.subscriptions.consumer import (
    Consumer,
    KeySharedMode,
    KeySharedPolicy,
    SubscribeRequest,
)
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.transaction.txn_status import TxnAction

MIDDLE = RING_SIZE // 2


def sticky(*ranges: tuple[int, int]) -> KeySharedPolicy:
    return KeySharedPolicy(KeySharedMode.STICKY, ranges)


LOW, HIGH = sticky((0, MIDDLE - 1)), sticky((MIDDLE, RING_SIZE - 1))


def is_low(key: str) -> bool:
    return slot_of(key.encode()) < MIDDLE


LOW_KEY = next(filter(is_low, KEYS))
HIGH_KEY = next(key for key in KEYS if not is_low(key))
LOWS = [at for at, key in enumerate(KEYS) if is_low(key)]
HIGHS = [at for at, key in enumerate(KEYS) if not is_low(key)]


@pytest.mark.parametrize("durable", [True, False])
def test_two_halves_of_the_ranges_make_the_whole(durable: bool) -> None:
    async def scenario(topic: FakeTopic) -> None:
        sinks = {}
        for name, policy in (("low", LOW), ("high", HIGH)):
            subscription = await topic.subscribe(name, durable)
            _, sinks[name] = await topic.consumer(subscription, EXCLUSIVE, 100, key_shared=policy)
        await topic.publish_keys(KEYS)
        assert sinks["low"].take() == LOWS
        assert sinks["high"].take() == HIGHS

    with_topic(scenario)


def test_several_ranges_are_one_wish_and_all_of_them_together_filter_nothing() -> None:
    def consumer(*ranges: tuple[int, int]) -> Consumer:
        return Consumer(SubscribeRequest(1, "c", key_shared=sticky(*ranges)), RecordingSink())

    found = ranges_of(consumer((0, 100), (MIDDLE, RING_SIZE - 1)))
    assert found is not None
    assert found.inside([]) == []
    assert ranges_of(consumer((MIDDLE, RING_SIZE - 1), (0, MIDDLE - 1))) is None
    assert ranges_of(consumer((0, RING_SIZE - 1))) is None
    assert ranges_of(consumer((0, MIDDLE - 1), (MIDDLE + 1, RING_SIZE - 1))) is not None
    assert ranges_of(consumer()) is None
    assert ranges_of(Consumer(SubscribeRequest(1, "c"), RecordingSink())) is None
    assert ranges_of(None) is None


def test_unusable_ranges_are_refused_and_leave_the_subscription_free() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        with pytest.raises(ConsumerAssignError, match="overlaps"):
            await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=sticky((0, 9), (5, 20)))
        assert subscription.consumers == []
        await topic.publish_keys([HIGH_KEY])
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 9)
        assert sink.take() == [0]

    with_topic(scenario)


def test_failover_ignores_ranges() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish_keys([LOW_KEY, HIGH_KEY])
        _, sink = await topic.consumer(subscription, FAILOVER, 9, key_shared=sticky((0, 9), (5, 9)))
        assert sink.take() == [0, 1]

    with_topic(scenario)


def test_messages_outside_cost_no_permits() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 2, key_shared=LOW)
        await topic.publish_keys(
            [HIGH_KEY] * 3 * LOOK_AHEAD + [LOW_KEY, HIGH_KEY, LOW_KEY, LOW_KEY]
        )
        first = 3 * LOOK_AHEAD
        assert sink.take() == [first, first + 2]
        assert consumer.permits == 0
        subscription.flow(consumer, 1)
        await topic.settled()
        assert sink.take() == [first + 3]

    with_topic(scenario)


def test_a_backlog_outside_of_the_ranges_is_passed_with_one_permit() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish_keys([HIGH_KEY] * 20 * LOOK_AHEAD + [LOW_KEY])
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 1, key_shared=LOW)
        await topic.settled()
        for _ in range(20):  # rounds of dispatch
            await topic.settled()
        assert sink.take() == [20 * LOOK_AHEAD]

    with_topic(scenario)


def test_what_is_outside_stays_for_a_consumer_with_other_ranges() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        positions = await topic.publish_keys([LOW_KEY, HIGH_KEY, LOW_KEY, HIGH_KEY])
        low, sink = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=LOW)
        assert sink.take() == [0, 2]
        subscription.acknowledge(low, [positions[0], positions[2]])
        assert subscription.backlog == 2
        assert subscription.mark_delete_position == positions[0]
        subscription.remove_consumer(low)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=HIGH)
        assert sink.take() == [1, 3]

    with_topic(scenario)


def test_a_cumulative_acknowledgement_covers_what_was_outside_before_it() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        positions = await topic.publish_keys([HIGH_KEY, LOW_KEY, HIGH_KEY])
        low, sink = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=LOW)
        assert sink.take() == [1]
        subscription.acknowledge_cumulative(low, positions[1])
        assert subscription.backlog == 1
        subscription.remove_consumer(low)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 9)
        assert sink.take() == [2]

    with_topic(scenario)


def test_redelivery_brings_what_is_inside_again() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish_keys([HIGH_KEY, LOW_KEY, HIGH_KEY, LOW_KEY])
        low, sink = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=LOW)
        assert sink.take() == [1, 3]
        subscription.redeliver(low, None)
        await topic.settled()
        assert sink.take() == [1, 3]

    with_topic(scenario)


def test_a_batch_goes_by_its_key_and_is_delivered_whole() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish_keys([HIGH_KEY, LOW_KEY, LOW_KEY, LOW_KEY], batch=3)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 4, key_shared=LOW)
        assert sink.take() == [1, 2]
        assert consumer.permits == -2

    with_topic(scenario)


def test_entries_from_the_disk_are_filtered_too() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish_keys(KEYS)
        topic.ledger.warm = False
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 100, key_shared=LOW)
        assert sink.take() == LOWS

    with_topic(scenario)


def test_what_an_aborted_transaction_gives_back_goes_to_its_ranges_only() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        positions = await topic.publish_keys([LOW_KEY, HIGH_KEY, HIGH_KEY, LOW_KEY])
        everything, _ = await topic.consumer(subscription, EXCLUSIVE, 9)
        txn_id = TxnId(0, 1)
        acks = [PendingAck(each) for each in positions]
        await subscription.acknowledge_in_transaction(everything, txn_id, acks, False)
        subscription.remove_consumer(everything)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=HIGH)
        assert sink.take() == []
        await topic.publish_keys([HIGH_KEY])
        assert sink.take() == [4]
        ended = subscription.end_transaction(txn_id, TxnAction.ABORT)
        assert ended is not None
        await ended
        await topic.settled()
        assert sink.take() == [1, 2]
        assert subscription.backlog == 5

    with_topic(scenario)


def test_a_dispatch_rate_counts_what_was_sent_and_does_not_stop_at_what_was_not() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        rate = Throttle(2, 0, 3600)
        subscription.dispatch.pace = DispatchPace(rate, None, subscription, HeldBack())
        await topic.publish_keys([HIGH_KEY] * 10 + [LOW_KEY, LOW_KEY, LOW_KEY])
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=LOW)
        for _ in range(10):  # rounds of dispatch
            await topic.settled()
        assert sink.take() == [10, 11]

    with_topic(scenario)


def test_a_seek_goes_to_the_first_message_inside() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        positions = await topic.publish_keys([LOW_KEY, LOW_KEY, HIGH_KEY, LOW_KEY])
        low, _ = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=LOW)
        subscription.acknowledge_cumulative(low, positions[3])
        await subscription.seek(positions[2])
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 9, key_shared=LOW)
        assert sink.take() == [3]

    with_topic(scenario)
