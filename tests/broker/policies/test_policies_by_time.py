"""What policies do by time, under a virtual clock: expiry of messages and subscriptions, quotas."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from topics_world import ORDERS, Owner, World, run
from virtual_loop import LoopClock

from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import MetadataError, QuotaExceededError, QuotaExceededException
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Tasks
from pybroker.broker.persistent.producers import Producer, ProducerState
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies import expiry, quotas
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.shapes import EVICTION
from pybroker.broker.policies.table import (
    BACKLOG_QUOTAS,
    DISPATCH_RATE,
    ENCRYPTION_REQUIRED,
    MESSAGE_TTL,
    SUBSCRIPTION_DISPATCH_RATE,
    SUBSCRIPTION_EXPIRY,
)
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest, SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import SendRun
from pybroker.wire.message_metadata import build_entry

DEFAULT = "public/default"
KEPT_NOTHING = TopicName.parse("non-persistent://public/default/t")
TXN = TxnId(0, 1)


async def publish(
    topic: Topic, *sizes: int, age_s: float = 0, txn_id: TxnId | None = None
) -> Position:
    """Publishes one message per size; returns the position of the last one."""
    producer = Producer(1, "p", owner=None)  # type: ignore[arg-type]
    producer.state = ProducerState.WRITING
    run = SendRun(1, txn_id)
    published_ms = topic.clock.now_ms() - int(age_s * 1000)
    for size in sizes:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=published_ms)
        run.entries.append(build_entry(metadata, b"x" * size))
        run.message_counts.append(1)
    stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    topic.publish(producer, run, lambda position, error: stored.set_result(position or error))
    first = await stored
    return Position(first.ledger_id, first.entry_id + len(sizes) - 1)


async def subscribed(topic: Topic, name: str = "s") -> Subscription:
    return await topic.subscription(name, EARLIEST, {}, create=True)


async def set_for_all(world: World, policy: Any, value: Any) -> None:
    await world.topics.policies.set_for_namespace(DEFAULT, policy, value)
    await world.topics.following.told()


def test_messages_that_waited_for_too_long_are_acknowledged() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 10, 10, age_s=400)
        await publish(topic, 10)
        await set_for_all(world, MESSAGE_TTL, 400)
        await asyncio.sleep(301)
        assert subscription.backlog == 1
        assert subscription.times.expired == 2
        await asyncio.sleep(600)
        assert subscription.backlog == 0

    run(scenario)


def test_nothing_expires_and_nobody_looks_where_no_policy_says_so() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 10, age_s=10**6)
        await asyncio.sleep(100)
        assert len(world.factory.housekeeper) == 1  # for the log's own rollover
        await asyncio.sleep(10_000)
        assert subscription.backlog == 1

    run(scenario)


def test_a_time_to_live_that_is_taken_back_ends_the_visits() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 10)
        await asyncio.sleep(100)
        visits = len(world.factory.housekeeper)
        await set_for_all(world, MESSAGE_TTL, 1)
        assert len(world.factory.housekeeper) == visits + 1
        await set_for_all(world, MESSAGE_TTL, 0)
        await asyncio.sleep(1000)
        assert subscription.backlog == 1
        assert len(world.factory.housekeeper) == visits

    run(scenario)


def test_an_open_transaction_s_messages_do_not_expire_nor_what_it_acknowledged() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 10, age_s=1000)
        second = await publish(topic, 10, age_s=1000)
        await publish(topic, 10, age_s=1000)
        await publish(topic, 10, age_s=1000, txn_id=TXN)
        other = TxnId(0, 2)
        acks = [PendingAck(second)]
        consumer = Consumer(SubscribeRequest(0, ""), None)  # type: ignore[arg-type]
        await subscription.acknowledge_in_transaction(consumer, other, acks, False)
        await set_for_all(world, MESSAGE_TTL, 1)
        await asyncio.sleep(301)
        assert subscription.cursor.mark_delete_position.entry_id == 0
        ending = subscription.end_transaction(other, TxnAction.ABORT)
        assert ending is not None
        await ending
        await asyncio.sleep(301)
        assert subscription.cursor.mark_delete_position.entry_id == 2
        assert not subscription.cursor.is_deleted((second.ledger_id, 3))

    run(scenario)


def test_visits_of_many_topics_are_spread_over_the_interval() -> None:
    async def scenario(world: World) -> None:
        topics = [await world.topic(TopicName.parse(f"t{n}")) for n in range(50)]
        for topic in topics:
            await subscribed(topic)
            await publish(topic, 10, age_s=1000)
        await set_for_all(world, MESSAGE_TTL, 1)
        done = []
        for _ in range(10):
            await asyncio.sleep(30)
            done.append(sum(t.subscriptions["s"].backlog == 0 for t in topics))
        assert done[0] < 20
        assert done == sorted(done)
        assert done[-1] == 50

    run(scenario)


def quota(kind: str, policy: str, **limits: int) -> dict[str, Any]:
    return {kind: {"policy": policy, **limits}}


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", QuotaExceededError),
        ("producer_exception", QuotaExceededException),
    ],
)
def test_a_full_topic_takes_no_producers_until_there_is_room(
    policy: str, error: type[Exception]
) -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await set_for_all(
            world, BACKLOG_QUOTAS, quota("destination_storage", policy, limitSize=1000)
        )
        await world.producer(topic)
        last = await publish(topic, 600, 600)
        await asyncio.sleep(61)
        assert len(topic.producers) == 0  # the producer was disconnected
        with pytest.raises(error, match="backlog quota exceeded"):
            await world.producer(topic)
        subscription.cursor.mark_delete(last)
        await world.producer(topic)

    run(scenario)


def test_who_does_not_encrypt_does_not_come_in_while_that_becomes_required() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()

        class Slow:
            async def check(self) -> None:
                await set_for_all(world, ENCRYPTION_REQUIRED, True)

        topic.quota = Slow()  # type: ignore[assignment]
        with pytest.raises(MetadataError, match="Encryption is required"):
            await world.producer(topic)

    run(scenario)


def test_an_old_message_fills_a_topic_too() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await set_for_all(
            world, BACKLOG_QUOTAS, quota("message_age", "producer_exception", limitTime=100)
        )
        last = await publish(topic, 10, age_s=50)
        await world.producer(topic)
        await asyncio.sleep(111)
        assert len(topic.producers) == 0
        with pytest.raises(QuotaExceededException):
            await world.producer(topic)
        subscription.cursor.mark_delete(last)
        await world.producer(topic)

    run(scenario)


def test_eviction_drops_the_oldest_messages_of_slow_consumers() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        slow, quick = await subscribed(topic, "slow"), await subscribed(topic, "quick")
        await publish(topic, *[1000] * 20)
        quick.cursor.mark_delete(topic.ledger.last_confirmed)
        size_bytes = topic.ledger.total_size_bytes // 2
        evict = quota("destination_storage", "consumer_backlog_eviction", limitSize=size_bytes)
        await set_for_all(world, BACKLOG_QUOTAS, evict)
        await world.producer(topic)
        await asyncio.sleep(61)
        assert len(topic.producers) == 1
        assert slow.backlog == 9
        assert quick.times.expired == 0
        assert slow.times.expired == 11
        assert world.topics.measures.evictions == {"destination_storage": 1}

    run(scenario)


def test_eviction_by_age_drops_what_is_too_old() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 10, 10, age_s=1000)
        await publish(topic, 10)
        evict = quota("message_age", "consumer_backlog_eviction", limitTime=500)
        await set_for_all(world, BACKLOG_QUOTAS, evict)
        await asyncio.sleep(61)
        assert subscription.backlog == 1
        assert world.topics.measures.evictions["message_age"] == 1

    run(scenario)


def test_eviction_leaves_what_an_open_transaction_wrote() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 1000)
        await publish(topic, 1000, txn_id=TXN)
        await publish(topic, *[1000] * 10)
        evict = quota("destination_storage", "consumer_backlog_eviction", limitSize=10)
        await set_for_all(world, BACKLOG_QUOTAS, evict)
        await asyncio.sleep(181)
        assert subscription.cursor.mark_delete_position.entry_id == 0
        assert world.topics.measures.evictions["destination_storage"] == 1, (
            "the others found nothing"
        )

    run(scenario)


def test_a_quota_without_subscriptions_stops_no_producer() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await publish(topic, 1000)
        full = quota("destination_storage", "producer_exception", limitSize=0)
        await set_for_all(world, BACKLOG_QUOTAS, full)
        await world.producer(topic)

    run(scenario)


def test_a_subscription_that_nobody_uses_is_deleted() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        unused, used = await subscribed(topic, "unused"), await subscribed(topic, "used")
        await set_for_all(world, SUBSCRIPTION_EXPIRY, 20)
        clock = LoopClock()
        for _ in range(10):
            await asyncio.sleep(300)
            used.times.flow(clock.now_ms())
        assert list(topic.subscriptions) == ["used"]
        assert unused.name not in topic.ledger.cursors
        assert topic.name == ORDERS

    run(scenario)


def test_a_subscription_of_a_topic_that_keeps_nothing_is_deleted_and_the_topic_goes() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topics.served(KEPT_NOTHING, create=True)
        assert topic is not None
        await topic.subscription("unused", None, {}, create=True)
        await set_for_all(world, SUBSCRIPTION_EXPIRY, 20)
        await asyncio.sleep(19 * 60)
        assert topic.subscriptions and not topic.closed
        await asyncio.sleep(12 * 60)
        assert not topic.subscriptions and topic.closed

    run(scenario)


def test_a_subscription_has_all_its_time_from_when_it_is_seen_unused() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await subscribed(topic)
        await asyncio.sleep(10_000)
        await set_for_all(world, SUBSCRIPTION_EXPIRY, 20)
        await asyncio.sleep(19 * 60)
        assert topic.subscriptions
        await asyncio.sleep(12 * 60)
        assert not topic.subscriptions

    run(scenario, broker_delete_inactive_topics_enabled=False)


def test_a_subscription_that_was_made_anew_while_others_expire_has_its_own_time() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        for name in ("first", "second"):
            await subscribed(topic, name)
        right = topic.delete_subscription

        async def delete(_: Topic, name: str) -> None:
            await right(name)
            if name == "first":
                await right("second")
                await subscribed(topic, "second")

        await set_for_all(world, SUBSCRIPTION_EXPIRY, 20)
        with patch.object(Topic, "delete_subscription", delete):
            await asyncio.sleep(31 * 60)
        assert list(topic.subscriptions) == ["second"]

    run(scenario, broker_delete_inactive_topics_enabled=False)


def test_an_expiry_that_is_taken_back_while_one_is_deleted_deletes_no_others() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        for name in ("first", "second"):
            await subscribed(topic, name)
        right = topic.delete_subscription

        async def delete(_: Topic, name: str) -> None:
            await right(name)
            await set_for_all(world, SUBSCRIPTION_EXPIRY, 0)

        await set_for_all(world, SUBSCRIPTION_EXPIRY, 20)
        with patch.object(Topic, "delete_subscription", delete):
            await asyncio.sleep(31 * 60)
        assert list(topic.subscriptions) == ["second"]

    run(scenario, broker_delete_inactive_topics_enabled=False)


def test_a_time_to_live_that_is_taken_back_as_the_visit_begins_lets_nothing_expire() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await set_for_all(world, MESSAGE_TTL, 10_000)
        await publish(topic, 10)
        without, start = Effective(topic.config, ()), Tasks.start

        def start_and_take_back(tasks: Tasks, work: Any, name: str) -> Any:
            if name == "a periodic policy check":
                topic.policies = without
            return start(tasks, work, name)

        with patch.object(Tasks, "start", start_and_take_back):
            await asyncio.sleep(301)
        assert topic.policies is without
        assert subscription.backlog == 1

    run(scenario)


def test_a_time_to_live_that_is_taken_back_while_the_log_is_read_lets_nothing_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = expiry.first_published_at

    async def scenario(world: World) -> None:
        async def slow_look(*args: Any, **more: Any) -> Position:
            found = await look(*args, **more)
            await set_for_all(world, MESSAGE_TTL, 0)
            return found

        monkeypatch.setattr(expiry, "first_published_at", slow_look)
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 10, age_s=400)
        await set_for_all(world, MESSAGE_TTL, 100)
        await asyncio.sleep(301)
        assert topic.policies[MESSAGE_TTL] == 0
        assert subscription.backlog == 1

    run(scenario)


def test_a_long_pause_of_a_dispatch_rate_keeps_nothing_in_memory_for_long() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        rate = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 10**9}
        await set_for_all(world, SUBSCRIPTION_DISPATCH_RATE, rate)
        await publish(topic, 10, 10, 10)
        consumer = Consumer(SubscribeRequest(1, "c"), Sink())
        await subscription.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
        subscription.flow(consumer, 10)
        await asyncio.sleep(1)
        assert consumer.messages_out == 1
        assert subscription.dispatch.pace is not None
        held_back = subscription.dispatch.pace.held_back
        assert held_back.messages_by_own > 0
        assert (held_back.bytes_by_own, held_back.messages_by_topic) == (0, 0)
        loop = asyncio.get_running_loop()
        scheduled: list[Any] = loop._scheduled  # type: ignore[attr-defined]
        pauses = [h for h in scheduled if "DispatchPace" in repr(h) and not h.cancelled()]
        assert [handle.when() - loop.time() <= 10 for handle in pauses] == [True]

    run(scenario)


@pytest.mark.parametrize(("relative", "most"), [(False, 3), (True, 20)])
def test_a_relative_dispatch_rate_lets_so_much_more_go_out_as_comes_in(
    relative: bool, most: int
) -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        rate = DISPATCH_RATE.check(
            {"dispatchThrottlingRateInMsg": 3, "relativeToPublishRate": relative}
        )
        await set_for_all(world, DISPATCH_RATE, rate)
        subscription = await subscribed(topic)
        consumer = Consumer(SubscribeRequest(1, "c"), Sink())
        await subscription.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
        subscription.flow(consumer, 1000)
        for _ in range(10):
            await publish(topic, *[1] * 20)
            await asyncio.sleep(1)
        before = consumer.messages_out
        await publish(topic, *[1] * 20)
        await asyncio.sleep(1.0)
        assert most - 1 <= consumer.messages_out - before <= most + 1

    run(scenario)


class Sink(Owner):
    def deliver(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("then", [{}, {"message_age": {"limitTime": -1, "policy": EVICTION}}])
def test_a_quota_that_is_taken_back_while_it_is_looked_at_evicts_nothing(
    monkeypatch: pytest.MonkeyPatch, then: dict[str, Any]
) -> None:
    look, disk_answers = quotas.oldest_waiting_ms, asyncio.Event()

    async def slow_look(topic: Topic, subscription: Subscription) -> int | None:
        await disk_answers.wait()
        return await look(topic, subscription)

    monkeypatch.setattr(quotas, "oldest_waiting_ms", slow_look)

    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await subscribed(topic)
        await publish(topic, 10, age_s=400)
        evict = quota("message_age", "consumer_backlog_eviction", limitTime=100)
        await set_for_all(world, BACKLOG_QUOTAS, evict)
        await asyncio.sleep(61)  # the check is running by then
        await set_for_all(world, BACKLOG_QUOTAS, then)
        await publish(topic, 10)
        disk_answers.set()
        await asyncio.sleep(1)
        assert subscription.backlog == 2

    run(scenario)
