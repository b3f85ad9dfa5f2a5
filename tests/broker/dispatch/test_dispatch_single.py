"""Exclusive and Failover dispatch, over a memory backend, with recording sinks."""

import asyncio
from typing import Any

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, SHARED, FakeTopic, RecordingSink, with_topic

from managed_ledger.errors import DamagedEntries
from managed_ledger.position import LATEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.errors import ConsumerBusy, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.dispatch import entry_fetcher
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest


def test_permits_bound_what_is_delivered() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=3)
        await topic.publish(5)
        assert sink.take() == [0, 1, 2]
        subscription.flow(consumer, 1)
        await topic.settled()
        assert sink.take() == [3]

    with_topic(scenario)


def test_a_backlog_goes_out_in_one_write() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish(50)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=100)
        assert sink.entry_ids == list(range(50))
        assert sink.writes == 1

    with_topic(scenario)


def test_permits_count_messages_and_a_batch_is_delivered_whole() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish(3, batch=4)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=5)
        assert sink.entry_ids == [0, 1]
        assert consumer.permits == -3
        subscription.flow(consumer, 3)
        await topic.settled()
        assert sink.entry_ids == [0, 1]
        subscription.flow(consumer, 1)
        await topic.settled()
        assert sink.entry_ids == [0, 1, 2]

    with_topic(scenario)


def test_permits_do_not_overflow() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE)
        subscription.flow(consumer, 0)
        assert consumer.permits == 0
        subscription.flow(consumer, 2**32 - 1)
        assert consumer.permits == 2**31 - 1

    with_topic(scenario)


def test_nothing_is_written_while_the_socket_is_full() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        sink.pause_after = 1
        await topic.publish(1)
        await topic.publish(2)
        assert sink.entry_ids == [0]
        sink.pause_after, sink.writable = None, True
        await topic.changed()
        assert sink.entry_ids == [0, 1, 2]

    with_topic(scenario)


def test_entries_that_are_not_in_memory_are_read_once_and_in_order() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish(30)
        topic.ledger.warm = False
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        assert sink.take() == list(range(10))
        subscription.flow(consumer, 20)
        await topic.settled()
        assert sink.take() == list(range(10, 30))
        assert topic.ledger.reads == 2

    with_topic(scenario)


def test_a_failed_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_fetcher, "READ_RETRY_S", 0)

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.publish(3)
        topic.ledger.warm = False
        topic.ledger.failures = 2
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        assert sink.take() == [0, 1, 2]
        assert topic.ledger.reads == 3

    with_topic(scenario)


def test_a_rewind_during_a_read_delivers_from_the_new_position() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=3)
        await topic.publish(3)
        assert sink.take() == [0, 1, 2]
        await topic.publish(3)
        topic.ledger.warm = False
        subscription.flow(consumer, 6)
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.take() == [0, 1, 2, 3, 4, 5]

    with_topic(scenario)


def test_reading_goes_on_in_the_next_ledger() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=100)
        first = await topic.publish(2)
        await topic.ledger.roll_over()
        second = await topic.publish(2)
        assert [message.position for message in sink.received] == first + second

    with_topic(scenario)


def test_individually_acknowledged_entries_are_not_delivered_again() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=100)
        await topic.publish(10)
        sink.take()
        subscription.acknowledge(consumer, [(0, 1), (0, 2), (0, 7)])
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.take() == [0, 3, 4, 5, 6, 8, 9]

    with_topic(scenario)


def test_a_partly_acknowledged_batch_comes_with_what_remains() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=100)
        (position,) = await topic.publish(1, batch=5)
        subscription.acknowledge_indexes(consumer, position, 0b10110, 5)
        permits = consumer.permits
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.received[-1].unacked == (0b10110, 5)
        assert consumer.permits == permits - 3

    with_topic(scenario)


def test_a_cumulative_acknowledgement_within_a_batch_keeps_its_rest() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=100)
        positions = await topic.publish(3, batch=3)
        subscription.acknowledge_cumulative(consumer, positions[1], 0b100, 3)
        sink.received.clear()
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert [message.unacked for message in sink.received] == [(0b100, 3), None]

    with_topic(scenario)


def test_a_second_exclusive_consumer_is_refused() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, EXCLUSIVE)
        for kind in (EXCLUSIVE, SHARED, FAILOVER):
            with pytest.raises(ConsumerBusy):
                await topic.consumer(subscription, kind)
        subscription.remove_consumer(first)
        await topic.consumer(subscription, SHARED)

    with_topic(scenario)


def test_the_next_exclusive_consumer_gets_what_was_not_acknowledged() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        positions = await topic.publish(4)
        subscription.acknowledge_cumulative(first, positions[1])
        subscription.remove_consumer(first)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        assert sink.entry_ids == [2, 3]

    with_topic(scenario)


def test_failover_hands_over_in_order_of_priority_then_name() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        b, b_sink = await topic.consumer(subscription, FAILOVER, 10, name="b", priority_level=1)
        _, c_sink = await topic.consumer(subscription, FAILOVER, 10, name="c", priority_level=1)
        assert (b_sink.active, c_sink.active) == ([True], [False])
        await topic.publish(2)
        assert (b_sink.take(), c_sink.take()) == ([0, 1], [])
        subscription.acknowledge(b, [(0, 0)])
        a, a_sink = await topic.consumer(subscription, FAILOVER, 10, name="z", priority_level=0)
        assert (a_sink.active, b_sink.active, c_sink.active) == (
            [True],
            [True, False],
            [False, False],
        )
        assert a_sink.take() == [1]
        subscription.remove_consumer(a)
        await topic.settled()
        assert b_sink.take() == [1]
        subscription.remove_consumer(b)
        await topic.settled()
        assert c_sink.take() == [1]

    with_topic(scenario)


def test_failover_spreads_partitions_over_consumers() -> None:
    async def scenario(topic: FakeTopic) -> None:
        topic.name = TopicName.parse("orders-partition-3")
        subscription = await topic.subscribe()
        await topic.consumer(subscription, FAILOVER, name="a")
        await topic.consumer(subscription, FAILOVER, name="c")
        await topic.consumer(subscription, FAILOVER, name="b")
        await topic.consumer(subscription, FAILOVER, name="d", priority_level=1)
        assert subscription.dispatch.active_consumer is not None
        assert subscription.dispatch.active_consumer.name == "a"
        topic.name = TopicName.parse("orders-partition-4")
        other = await topic.subscribe("other")
        await topic.consumer(other, FAILOVER, name="a")
        await topic.consumer(other, FAILOVER, name="c")
        await topic.consumer(other, FAILOVER, name="b")
        assert other.dispatch.active_consumer is not None
        assert other.dispatch.active_consumer.name == "b"

    with_topic(scenario)


def test_nothing_behind_the_max_read_position_is_delivered() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        topic.limit = Position(0, 1)
        await topic.publish(4)
        assert sink.take() == [0, 1]
        topic.limit = None
        await topic.changed()
        assert sink.take() == [2, 3]

    with_topic(scenario)


def test_hidden_entries_are_skipped_and_mark_delete_passes_them() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        topic.limit = Position(0, -1)
        positions = await topic.publish(6)
        topic.limit = None
        await topic.hide([positions[0], positions[2], positions[3], positions[5]])
        assert subscription.backlog == 2
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        assert sink.take() == [1, 4]
        subscription.acknowledge(consumer, [positions[1], positions[4]])
        assert subscription.cursor.mark_delete_position == positions[5]
        assert subscription.backlog == 0

    with_topic(scenario)


def test_hidden_entries_at_the_end_go_without_permits() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=1)
        positions = await topic.publish(1)
        subscription.acknowledge_cumulative(consumer, positions[0])
        topic.limit = positions[0]
        hidden = await topic.publish(2)
        topic.limit = None
        await topic.hide(hidden)
        assert sink.take() == [0]
        assert subscription.cursor.mark_delete_position == hidden[-1]

    with_topic(scenario)


def test_the_backlog_leaves_hidden_entries_out_before_and_after_a_rewind() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        topic.limit = Position(0, -1)
        positions = await topic.publish(10)
        await topic.hide(positions[1:10:2])
        topic.limit = None
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, permits=2)
        assert subscription.backlog == 5
        subscription.redeliver(consumer, None)
        assert subscription.backlog == 5
        topic.limit = positions[4]
        assert subscription.backlog == 5

    with_topic(scenario)


def test_long_acknowledged_stretches_are_not_read() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=5000)
        await topic.publish(4000)
        sink.take()
        subscription.cursor.delete_range(0, 1, 3998)
        topic.ledger.warm = False
        topic.ledger.reads = 0
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.take() == [0, 3999]
        assert topic.ledger.reads == 2

    with_topic(scenario)


def test_a_cursor_is_not_said_to_have_moved_when_the_topic_was_unloaded_meanwhile() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        positions = await topic.publish(5)
        await subscription.close()
        topic.ledger.cursors["sub"].retired = True  # as if the ledger were closed, too
        with pytest.raises(ServiceNotReady):
            await subscription.seek(positions[3])
        with pytest.raises(ServiceNotReady):
            await subscription.skip_all()
        assert subscription.cursor.mark_delete_position < positions[0]

    with_topic(scenario)


def test_seek_disconnects_and_the_next_consumer_reads_from_there() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        positions = await topic.publish(5)
        subscription.acknowledge_cumulative(consumer, positions[-1])
        await subscription.seek(positions[3])
        assert len(sink.closed) == 1
        assert subscription.consumers == []
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        assert sink.entry_ids == [3, 4]
        await subscription.seek(LATEST)
        _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        await topic.publish(1)
        assert sink.entry_ids == [5]

    with_topic(scenario)


def test_skip_all_leaves_messages_of_open_transactions() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, EXCLUSIVE)
        positions = await topic.publish(5)
        topic.limit = positions[2]
        await subscription.skip_all()
        assert subscription.backlog == 2
        topic.limit = None
        subscription.flow(subscription.consumers[0], 10)
        await topic.settled()
        assert sink.entry_ids == [3, 4]

    with_topic(scenario)


def test_a_deleted_subscription_takes_its_cursor_along() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        _, sink = await topic.consumer(subscription, EXCLUSIVE)
        await subscription.delete()
        assert len(sink.closed) == 1
        assert "sub" not in topic.ledger.cursors

    with_topic(scenario)


@pytest.mark.parametrize("away", ["seek", "skip"])
def test_damage_that_was_moved_past_does_not_keep_consumers_out(away: str) -> None:
    async def scenario(topic: FakeTopic) -> None:
        read, disk_answers = topic.ledger.read, asyncio.Event()

        async def damaged_read(position: Position, *limits: Any) -> EntryRun | None:
            if position.entry_id < 2:
                await disk_answers.wait()
                raise DamagedEntries(position.ledger_id, 0, 1, "bad checksum")
            return await read(position, *limits)

        subscription = await topic.subscribe()
        positions = await topic.publish(4)
        topic.ledger.warm, topic.ledger.read = False, damaged_read
        consumer = Consumer(SubscribeRequest(1, "c"), RecordingSink())
        await subscription.add_consumer(consumer, EXCLUSIVE)
        subscription.flow(consumer, 10)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if away == "skip":
            await subscription.skip_to(positions[1])
            disk_answers.set()
            await topic.settled()
            sink = consumer.sink
        else:
            await subscription.seek(positions[2])
            disk_answers.set()
            await topic.settled()
            _, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        assert isinstance(sink, RecordingSink)
        assert sink.entry_ids == [2, 3]

    with_topic(scenario)
