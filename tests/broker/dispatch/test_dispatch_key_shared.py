"""Key_Shared dispatch: one consumer per key, in order, even if consumers come and go."""

from typing import Any

import pytest
from dispatch_fakes import KEY_SHARED, KEYS, FakeTopic, check_parked, owner_among, with_topic

from managed_ledger.position import Position
from pybroker.base.errors import ConsumerAssignError
from pybroker.broker.dispatch import key_shared
from pybroker.broker.dispatch.hash_ring import slot_of
from pybroker.broker.subscriptions.consumer import KeySharedMode, KeySharedPolicy
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

HALVES = ((0, 32767), (32768, 65535))


def sticky(*ranges: tuple[int, int]) -> KeySharedPolicy:
    return KeySharedPolicy(KeySharedMode.STICKY, ranges)


def key_in(low: int, high: int) -> str:
    return next(key for key in KEYS if low <= slot_of(key.encode()) <= high)


def keys_changing_owner(*names: str) -> list[str]:
    """Keys that the last of the named consumers takes over from the others."""
    before, after = owner_among(*names[:-1]), owner_among(*names)
    return [key for key in KEYS if before(key) != after(key)]


def test_every_key_has_one_consumer() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumers = [
            await topic.consumer(subscription, KEY_SHARED, 1000, name=name) for name in "abc"
        ]
        await topic.publish_keys(KEYS * 3)
        owners: dict[str, set[str]] = {}
        for consumer, sink in consumers:
            for entry_id in sink.entry_ids:
                owners.setdefault(KEYS[entry_id % len(KEYS)], set()).add(consumer.name)
            assert sink.entry_ids == sorted(sink.entry_ids)
            assert sink.received
        assert len(owners) == len(KEYS)
        assert all(len(names) == 1 for names in owners.values())

    with_topic(scenario)


def test_a_full_consumer_does_not_hold_up_the_keys_of_others() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(
            subscription, KEY_SHARED, 1, name="a", key_shared=sticky(HALVES[0])
        )
        _, b_sink = await topic.consumer(
            subscription, KEY_SHARED, 10, name="b", key_shared=sticky(HALVES[1])
        )
        for_a, for_b = key_in(*HALVES[0]), key_in(*HALVES[1])
        await topic.publish_keys([for_a, for_a, for_b, for_a, for_b])
        assert (a_sink.entry_ids, b_sink.entry_ids) == ([0], [2, 4])
        subscription.flow(a, 10)
        await topic.publish_keys([for_a])
        assert a_sink.entry_ids == [0, 1, 3, 5]

    with_topic(scenario)


def test_a_key_waits_for_its_former_owners_acknowledgements() -> None:
    moved = keys_changing_owner("a", "b")[0]

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(subscription, KEY_SHARED, 100, name="a")
        positions = await topic.publish_keys([moved, moved])
        _, b_sink = await topic.consumer(subscription, KEY_SHARED, 100, name="b")
        await topic.publish_keys([moved])
        subscription.acknowledge(a, positions[:1])
        await topic.settled()
        assert (a_sink.entry_ids, b_sink.entry_ids) == ([0, 1], [])
        subscription.acknowledge(a, positions[1:])
        await topic.settled()
        assert b_sink.entry_ids == [2]
        check_parked(subscription)

    with_topic(scenario)


def test_a_key_moves_at_once_where_order_does_not_matter() -> None:
    moved = keys_changing_owner("a", "b")[0]
    loose = KeySharedPolicy(allow_out_of_order=True)

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, KEY_SHARED, 100, name="a", key_shared=loose)
        await topic.publish_keys([moved])
        _, sink = await topic.consumer(subscription, KEY_SHARED, 9, name="b", key_shared=loose)
        await topic.publish_keys([moved])
        assert sink.entry_ids == [1]

    with_topic(scenario)


def test_a_leaving_consumers_messages_go_in_order_before_what_waited() -> None:
    moved = keys_changing_owner("a", "b")[0]

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, _ = await topic.consumer(subscription, KEY_SHARED, 100, name="a")
        await topic.publish_keys([moved, moved])
        _, sink = await topic.consumer(subscription, KEY_SHARED, 100, name="b")
        await topic.publish_keys([moved, moved])
        subscription.remove_consumer(a)
        await topic.settled()
        assert sink.entry_ids == [0, 1, 2, 3]

    with_topic(scenario)


def test_overlapping_or_missing_ranges_are_refused() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, KEY_SHARED, name="a", key_shared=sticky((0, 100)))
        for ranges in [(100, 200)], [], [(300, 65536)], [(300, 200)], [(300, 400), (350, 500)]:
            with pytest.raises(ConsumerAssignError):
                await topic.consumer(subscription, KEY_SHARED, name="b", key_shared=sticky(*ranges))
        with pytest.raises(ConsumerAssignError):
            await topic.consumer(subscription, KEY_SHARED, name="auto")
        await topic.consumer(subscription, KEY_SHARED, name="b", key_shared=sticky((101, 200)))

    with_topic(scenario)


def test_a_refused_first_consumer_leaves_the_subscription_free() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        with pytest.raises(ConsumerAssignError):
            await topic.consumer(subscription, KEY_SHARED, key_shared=sticky())
        assert subscription.consumers == []
        await topic.consumer(subscription, KEY_SHARED)

    with_topic(scenario)


def test_messages_that_nobody_owns_wait_for_their_consumer() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, a = await topic.consumer(
            subscription, KEY_SHARED, 10, name="a", key_shared=sticky(HALVES[0])
        )
        await topic.publish_keys([key_in(*HALVES[1]), key_in(*HALVES[0])])
        assert a.entry_ids == [1]
        _, b = await topic.consumer(
            subscription, KEY_SHARED, 10, name="b", key_shared=sticky(HALVES[1])
        )
        assert b.entry_ids == [0]

    with_topic(scenario)


def test_reading_ahead_of_a_full_consumer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_shared, "MAX_WAITING_PER_CONSUMER", 5)

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(
            subscription, KEY_SHARED, 0, name="a", key_shared=sticky(HALVES[0])
        )
        _, b_sink = await topic.consumer(
            subscription, KEY_SHARED, 100, name="b", key_shared=sticky(HALVES[1])
        )
        for_a, for_b = key_in(*HALVES[0]), key_in(*HALVES[1])
        for _ in range(20):
            await topic.publish_keys([for_a])
        await topic.publish_keys([for_b])
        assert subscription.reader.position == Position(0, 10)
        assert b_sink.entry_ids == []
        assert subscription.dispatch.key_shared is not None
        assert not subscription.dispatch.key_shared.dispatch(), "nothing can be done now"
        subscription.flow(a, 100)
        await topic.settled()
        assert (a_sink.entry_ids, b_sink.entry_ids) == (list(range(20)), [20])

    with_topic(scenario)


def test_policies_of_two_kinds_do_not_mix_in_either_order() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, KEY_SHARED, name="auto")
        with pytest.raises(ConsumerAssignError):
            await topic.consumer(subscription, KEY_SHARED, name="b", key_shared=sticky(HALVES[0]))

    with_topic(scenario)


def test_what_waited_for_a_consumer_that_left_goes_to_the_next_owner() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, _ = await topic.consumer(subscription, KEY_SHARED, 0, name="a")
        _, sink = await topic.consumer(subscription, KEY_SHARED, 1000, name="b")
        await topic.publish_keys(KEYS)
        assert 0 < len(sink.received) < len(KEYS)
        subscription.remove_consumer(a)
        await topic.settled()
        assert sorted(sink.entry_ids) == list(range(len(KEYS)))

    with_topic(scenario)


def test_what_a_newcomer_takes_over_no_longer_waits_for_the_former_owner() -> None:
    before = owner_among("a", "b")
    moved = next(key for key in keys_changing_owner("a", "b", "c") if before(key) == "a")

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(subscription, KEY_SHARED, 0, name="a")
        await topic.consumer(subscription, KEY_SHARED, 10, name="b")
        await topic.publish_keys([moved, moved])
        _, c_sink = await topic.consumer(subscription, KEY_SHARED, 10, name="c")
        subscription.flow(a, 100)
        await topic.settled()
        assert (a_sink.entry_ids, c_sink.entry_ids) == ([], [0, 1])

    with_topic(scenario)


def test_a_key_whose_new_owner_came_and_went_is_delivered_once() -> None:
    before = owner_among("a", "c")
    moved = next(key for key in keys_changing_owner("a", "b") if before(key) == "a")

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, KEY_SHARED, 100, name="a")
        await topic.publish_keys([moved])
        b, _ = await topic.consumer(subscription, KEY_SHARED, 100, name="b")
        await topic.publish_keys([moved])
        subscription.remove_consumer(b)
        await topic.settled()
        assert sink.entry_ids == [0, 1]
        check_parked(subscription)
        await topic.consumer(subscription, KEY_SHARED, 100, name="c")
        assert sink.entry_ids == [0, 1]

    with_topic(scenario)


def test_what_a_consumer_holds_of_keys_that_are_another_s_by_now_is_told() -> None:
    moved = keys_changing_owner("a", "b")
    kept = [key for key in KEYS if key not in moved]

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, _ = await topic.consumer(subscription, KEY_SHARED, 100, name="a")
        positions = await topic.publish_keys([moved[0], kept[0], moved[0], moved[1]])
        await topic.consumer(subscription, KEY_SHARED, 100, name="b")
        await topic.publish_keys([moved[2]])
        dispatcher = subscription.dispatch.key_shared
        assert dispatcher is not None
        (drains,) = dispatcher.draining().items()
        assert drains[0] is a
        assert [(slot.held, slot.waiting) for slot in drains[1]] == [(2, 0), (1, 0)]
        subscription.acknowledge(a, positions[2:])
        assert [slot.held for slot in dispatcher.draining()[a]] == [1]
        assert a.slots_drained == 1
        subscription.acknowledge(a, positions[:2])
        assert (a.slots_drained, dispatcher.draining()) == (2, {})

    with_topic(scenario)


@pytest.mark.parametrize("given_back", [False, True])
def test_what_waits_goes_out_in_as_many_rounds_as_it_takes(
    given_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "ROUND_BYTES", 1)
    for_a, for_b = key_in(*HALVES[0]), key_in(*HALVES[1])

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, sink = await topic.consumer(
            subscription, KEY_SHARED, 0, name="a", key_shared=sticky(HALVES[0])
        )
        b, _ = await topic.consumer(
            subscription, KEY_SHARED, 100, name="b", key_shared=sticky(HALVES[1])
        )
        await topic.publish_keys([for_a, for_a, for_b, for_a])
        if given_back:
            subscription.redeliver(b, None)
        subscription.flow(a, 100)
        for _ in range(9):
            await topic.settled()
        assert sink.entry_ids == [0, 1, 3]

    with_topic(scenario)


def test_what_comes_behind_waiting_messages_that_all_were_acknowledged_is_delivered() -> None:
    for_a, for_b = key_in(*HALVES[0]), key_in(*HALVES[1])

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, sink = await topic.consumer(
            subscription, KEY_SHARED, 0, name="a", key_shared=sticky(HALVES[0])
        )
        await topic.consumer(subscription, KEY_SHARED, 100, name="b", key_shared=sticky(HALVES[1]))
        positions = await topic.publish_keys([for_a, for_a, for_b])
        subscription.acknowledge(a, positions[:2])
        subscription.flow(a, 100)
        await topic.publish_keys([for_a])
        assert sink.entry_ids == [3]
        check_parked(subscription)

    with_topic(scenario)


def test_what_is_given_back_goes_first_though_it_has_to_be_read_from_the_disk() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, KEY_SHARED, 1)
        (first,) = await topic.publish_keys(["key"])
        await topic.publish_keys(["key", "key"])
        topic.ledger.cold_up_to = first
        subscription.redeliver(consumer, [first])
        subscription.flow(consumer, 100)
        await topic.settled()
        assert sink.entry_ids == [0, 0, 1, 2]

    with_topic(scenario)


def test_waiting_messages_that_were_acknowledged_delay_no_other() -> None:
    """As when a client acknowledges messages that it received before a reconnection."""
    for_a, for_b = key_in(*HALVES[0]), key_in(*HALVES[1])

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(
            subscription, KEY_SHARED, 1, name="a", key_shared=sticky(HALVES[0])
        )
        b, b_sink = await topic.consumer(
            subscription, KEY_SHARED, 1, name="b", key_shared=sticky(HALVES[1])
        )
        positions = await topic.publish_keys([for_a, for_b, for_a, for_b])
        for consumer in (a, b):
            consumer.permits = 0
        await topic.publish_keys([for_a, for_b])
        subscription.acknowledge(a, [positions[2]])
        for consumer in (a, b):
            consumer.add_permits(100)
        subscription.notify()
        await topic.settled()
        assert (a_sink.entry_ids, b_sink.entry_ids) == ([0, 4], [1, 3, 5])

    with_topic(scenario)


def test_what_waits_for_a_former_owner_counts_among_what_is_read_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_shared, "MAX_WAITING_PER_CONSUMER", 5)
    moved = keys_changing_owner("a", "b")[0]

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, KEY_SHARED, 100, name="a")
        await topic.publish_keys([moved])
        await topic.consumer(subscription, KEY_SHARED, 100, name="b")
        for _ in range(20):
            await topic.publish_keys([moved])
        assert subscription.reader.position == Position(0, 11)

    with_topic(scenario)


def test_skipping_everything_forgets_what_waited_and_what_was_in_flight() -> None:
    moved = keys_changing_owner("a", "b")[0]

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, a_sink = await topic.consumer(subscription, KEY_SHARED, 100, name="a")
        await topic.publish_keys([moved])
        b, b_sink = await topic.consumer(subscription, KEY_SHARED, 0, name="b")
        await topic.publish_keys([moved, moved])
        await subscription.skip_all()
        assert subscription.dispatch.unacked_messages == 0
        subscription.flow(b, 10)
        await topic.publish_keys([moved])
        assert (a_sink.entry_ids, b_sink.entry_ids) == ([0], [3])

    with_topic(scenario)


def test_what_waits_is_read_from_the_disk_when_it_left_the_memory() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(subscription, KEY_SHARED, 0, name="a")
        b, b_sink = await topic.consumer(subscription, KEY_SHARED, 1000, name="b")
        positions = await topic.publish_keys(KEYS)
        topic.ledger.warm = False
        subscription.redeliver(b, None)
        subscription.flow(a, 1000)
        await topic.settled()
        assert sorted(a_sink.entry_ids + b_sink.take()[-len(KEYS) :])
        assert subscription.dispatch.unacked_messages == len(positions)

    with_topic(scenario)


def test_messages_without_a_key_spread_and_each_has_its_place() -> None:
    """Copies of a message and its chunks share one slot."""

    def slot(sequence_id: int, **fields: Any) -> int:
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=sequence_id, publish_time=0, **fields
        )
        return key_shared.slot_of_entry(build_entry(metadata, b"x"))

    assert slot(7) == slot(7, chunk_id=3) == slot_of(b"p-7")
    assert len({slot(number) for number in range(1000)}) > 900
    assert slot(7, partition_key="") == slot(8, partition_key="") == slot_of(b"")
    assert slot(7, partition_key="k") == slot_of(b"k")
