"""Shared dispatch: turns, limits, redelivery and its counts."""

import asyncio

import pytest
from dispatch_fakes import SHARED, FakeTopic, with_topic
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed


def test_messages_that_come_singly_go_around() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        sinks = [(await topic.consumer(subscription, SHARED, 10, name=name))[1] for name in "abc"]
        for _ in range(6):
            await topic.publish(1)
        assert [sink.entry_ids for sink in sinks] == [[0, 3], [1, 4], [2, 5]]

    with_topic(scenario)


def test_a_backlog_is_split_evenly() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumers = [await topic.consumer(subscription, SHARED, name=name) for name in "abc"]
        await topic.publish(9)
        for consumer, _ in consumers:
            subscription.flow(consumer, 100)
        await topic.settled()
        assert [len(sink.received) for _, sink in consumers] == [3, 3, 3]
        assert all(sink.writes == 1 for _, sink in consumers)

    with_topic(scenario)


def test_a_worse_priority_gets_what_the_better_cannot_take() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, low = await topic.consumer(subscription, SHARED, 10, name="low", priority_level=1)
        _, high = await topic.consumer(subscription, SHARED, 2, name="high", priority_level=0)
        await topic.publish(5)
        assert (high.entry_ids, low.entry_ids) == ([0, 1], [2, 3, 4])

    with_topic(scenario)


def test_a_consumer_whose_socket_is_full_is_left_out() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, a = await topic.consumer(subscription, SHARED, 10, name="a")
        _, b = await topic.consumer(subscription, SHARED, 10, name="b")
        a.writable = False
        await topic.publish(3)
        assert (a.entry_ids, b.entry_ids) == ([], [0, 1, 2])

    with_topic(scenario)


def test_a_negative_acknowledgement_delivers_again_and_counts() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(4)
        sink.take()
        for expected in (1, 2):
            subscription.redeliver(consumer, [positions[1], positions[1], positions[3]])
            await topic.settled()
            assert [(m.position.entry_id, m.redelivery_count) for m in sink.received] == [
                (1, expected),
                (3, expected),
            ]
            sink.take()
        assert consumer.unacked.messages == 4

    with_topic(scenario)


def test_redelivery_comes_before_new_messages() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 3)
        positions = await topic.publish(6)
        subscription.redeliver(consumer, [positions[2], positions[0]])
        subscription.flow(consumer, 4)
        await topic.settled()
        assert sink.entry_ids == [0, 1, 2, 0, 2, 3, 4]

    with_topic(scenario)


def test_what_was_acknowledged_or_is_not_held_is_not_redelivered() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(subscription, SHARED, 2, name="a")
        b, b_sink = await topic.consumer(subscription, SHARED, 0, name="b")
        positions = await topic.publish(3)
        subscription.acknowledge(a, [positions[0]])
        a_sink.take()
        subscription.redeliver(a, [positions[0], positions[2]])
        subscription.redeliver(b, positions)
        subscription.flow(a, 1)
        subscription.flow(b, 1)
        await topic.settled()
        assert a_sink.take() + b_sink.take() == [2]

    with_topic(scenario)


def test_what_a_leaving_consumer_held_goes_to_the_others_uncounted() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, _ = await topic.consumer(subscription, SHARED, 10, name="a")
        positions = await topic.publish(4)
        _, b_sink = await topic.consumer(subscription, SHARED, 10, name="b")
        subscription.acknowledge(a, positions[:1])
        subscription.remove_consumer(a)
        await topic.settled()
        assert [(m.position.entry_id, m.redelivery_count) for m in b_sink.received] == [
            (1, 0),
            (2, 0),
            (3, 0),
        ]

    with_topic(scenario)


def test_redelivery_counts_outlive_a_reconnect() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, SHARED, 10)
        positions = await topic.publish(2)
        subscription.redeliver(consumer, [positions[1]])
        await topic.settled()
        subscription.remove_consumer(consumer)
        consumer, sink = await topic.consumer(subscription, SHARED, 10)
        assert [m.redelivery_count for m in sink.received] == [0, 1]
        subscription.acknowledge(consumer, positions)
        assert not subscription.dispatch.redelivery_counts

    with_topic(scenario)


def test_redelivery_reads_from_the_disk_what_is_no_longer_in_memory() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(6)
        sink.take()
        topic.ledger.warm = False
        subscription.redeliver(consumer, [positions[i] for i in (0, 1, 4)])
        await topic.settled()
        assert sink.take() == [0, 1, 4]

    with_topic(scenario)


def test_an_acknowledgement_through_another_consumer_counts() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, _ = await topic.consumer(subscription, SHARED, 10, name="a")
        positions = await topic.publish(2)
        b, _ = await topic.consumer(subscription, SHARED, 10, name="b")
        subscription.acknowledge(b, positions)
        assert (a.unacked.messages, subscription.dispatch.unacked_messages) == (0, 0)
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_consumer_with_too_many_unacknowledged_waits_until_half() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(10)
        assert sink.take() == [0, 1, 2, 3]
        assert consumer.blocked
        subscription.acknowledge(consumer, positions[:1])
        await topic.settled()
        assert sink.take() == []
        subscription.acknowledge(consumer, positions[1:2])
        await topic.settled()
        assert sink.take() == [4, 5]

    with_topic(scenario, max_unacked_messages_per_consumer=4)


def test_a_subscription_with_too_many_unacknowledged_waits_until_half() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        a, a_sink = await topic.consumer(subscription, SHARED, 100, name="a")
        _, b_sink = await topic.consumer(subscription, SHARED, 100, name="b")
        await topic.publish(20)
        assert subscription.dispatch.unacked_messages == 6
        subscription.remove_consumer(a)
        await topic.settled()
        assert subscription.dispatch.unacked_messages == 6
        assert len(a_sink.received) == 3
        assert sorted({*b_sink.entry_ids, *a_sink.entry_ids}) == list(range(6))

    with_topic(scenario, max_unacked_messages_per_subscription=6)


def test_batch_index_acknowledgements_count_by_message() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        (position,) = await topic.publish(1, batch=4)
        assert consumer.unacked.messages == 4
        subscription.acknowledge_indexes(consumer, position, 0b0111, 4)
        assert consumer.unacked.messages == 3
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.received[-1].unacked == (0b0111, 4)
        assert consumer.unacked.messages == 3
        subscription.acknowledge_indexes(consumer, position, 0b0000, 4)
        assert (consumer.unacked.messages, subscription.backlog) == (0, 0)

    with_topic(scenario)


def test_cumulative_acknowledgement_is_refused() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, SHARED, 10)
        (position,) = await topic.publish(1)
        with pytest.raises(NotAllowed):
            subscription.acknowledge_cumulative(consumer, position)

    with_topic(scenario)


def test_a_readers_subscription_goes_with_its_consumer() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe("reader", durable=False)
        consumer, sink = await topic.consumer(subscription, SHARED, 10)
        await topic.publish(1)
        assert sink.entry_ids == [0]
        await subscription.seek(Position(0, 0))
        assert "reader" in topic.subscriptions
        consumer, _ = await topic.consumer(subscription, SHARED, 10)
        subscription.remove_consumer(consumer)
        await topic.settled()
        assert "reader" not in topic.subscriptions
        assert "reader" not in topic.ledger.cursors

    with_topic(scenario)


def test_many_notifications_make_one_dispatch() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, SHARED, 100)
        await asyncio.gather(*(topic.ledger.append_one(b"", 1) for _ in range(20)))
        for _ in range(20):
            subscription.notify()
        await topic.settled()
        assert sink.writes == 1

    with_topic(scenario)


def test_a_round_is_bounded_in_bytes() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        for _ in range(6):
            await topic.ledger.append_one(b"x" * 400_000, 1)
        _, sink = await topic.consumer(subscription, SHARED, 100)
        assert sink.entry_ids == list(range(6))
        assert sink.writes > 1

    with_topic(scenario)


actions = st.lists(
    st.tuples(
        st.sampled_from(["publish", "flow", "ack", "nack", "leave", "join", "pause", "resume"]),
        st.integers(0, 7),
    ),
    max_size=40,
)


@given(actions)
def test_every_message_is_held_by_one_consumer_and_permits_add_up(
    script: list[tuple[str, int]],
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        given_permits: dict[object, int] = {}
        acked: set[Position] = set()
        held: dict[object, dict[Position, None]] = {}
        joined = [await topic.consumer(subscription, SHARED, name="c0")]

        def look() -> None:
            for consumer, sink in joined:
                for message in sink.received:
                    assert message.position not in acked
                    assert not any(message.position in others for others in held.values())
                    held.setdefault(consumer, {})[message.position] = None
                delivered = 2 * len(sink.received)
                sink.received.clear()
                given_permits[consumer] = given_permits.get(consumer, 0) - delivered
                assert consumer.permits == given_permits[consumer]
                assert consumer.unacked.messages == 2 * len(held.get(consumer, {}))

        for action, number in script:
            consumer, sink = joined[number % len(joined)]
            mine = list(held.get(consumer, {}))
            if action == "publish":
                await topic.publish(number, batch=2)
            elif action == "flow":
                given_permits[consumer] = given_permits.get(consumer, 0) + number
                subscription.flow(consumer, number)
            elif action == "ack":
                acked.update(mine[:number])
                for position in mine[:number]:
                    del held[consumer][position]
                subscription.acknowledge(consumer, mine[:number])
            elif action == "nack":
                for position in mine[number:]:
                    del held[consumer][position]
                subscription.redeliver(consumer, mine[number:])
            elif action == "leave" and len(joined) > 1:
                joined.remove((consumer, sink))
                held.pop(consumer, None)
                subscription.remove_consumer(consumer)
            elif action == "join":
                joined.append(await topic.consumer(subscription, SHARED, name=f"c{number}"))
            elif action in ("pause", "resume"):
                sink.writable = action == "resume"
                subscription.notify()
            await topic.settled()
            look()
        for consumer, sink in joined:
            sink.writable = True
            given_permits[consumer] = given_permits.get(consumer, 0) + 10_000
            subscription.flow(consumer, 10_000)
        await topic.settled()
        look()
        everything = {position for positions in held.values() for position in positions} | acked
        assert len(everything) == topic.ledger.last_confirmed.entry_id + 1

    with_topic(scenario)
