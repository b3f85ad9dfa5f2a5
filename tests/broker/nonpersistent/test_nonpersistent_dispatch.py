"""Non-persistent dispatch: which consumers get a run of messages, and how many count as dropped."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from dispatch_fakes import EXCLUSIVE, KEY_SHARED, SHARED, RecordingSink, SteppedClock

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import ConsumerAssignError
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.dispatch.hash_ring import slot_of
from pybroker.broker.nonpersistent.subscription import NonPersistentSubscription
from pybroker.broker.nonpersistent.topic import NonPersistentTopic
from pybroker.broker.persistent.producers import Producer, ProducerState
from pybroker.broker.policies.effective import Effective
from pybroker.broker.subscriptions.consumer import (
    Consumer,
    KeySharedMode,
    KeySharedPolicy,
    SubscribeRequest,
    SubscriptionType,
)
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry


@dataclass
class Run:
    entries: list[bytes]
    message_counts: list[int]
    txn_id: TxnId | None = None


@dataclass
class World:
    topic: NonPersistentTopic
    producer: Producer
    published: list[int] = field(default_factory=list)

    async def consumer(
        self,
        name: str,
        kind: SubscriptionType = SHARED,
        permits: int = 100,
        subscription: str = "s",
        **options: Any,
    ) -> RecordingSink:
        sink = RecordingSink()
        consumer = Consumer(SubscribeRequest(len(name), name, **options), sink)
        joined = await self.topic.subscription(subscription, None, {}, create=True)
        await joined.add_consumer(consumer, kind)
        joined.flow(consumer, permits)
        return sink

    def publish(self, count: int, key: str | None = None, size_bytes: int = 1) -> None:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        if key is not None:
            metadata.partition_key = key
        entries = [build_entry(metadata, b"x" * size_bytes)] * count

        def published(first: Any, error: Exception | None) -> None:
            assert error is None
            self.published.append(first.entry_id)

        self.topic.publish(self.producer, Run(entries, [1] * count), published)

    def subscription(self, name: str = "s") -> NonPersistentSubscription:
        return self.topic.subscriptions[name]


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        topic = NonPersistentTopic(
            TopicName.parse("non-persistent://public/default/t"),
            SteppedClock(),
            Effective(BrokerConfig(), ()),
        )
        producer = Producer(1, "p", owner=None)  # type: ignore[arg-type]
        producer.state = ProducerState.WRITING
        await scenario(World(topic, producer))
        await topic.close()

    asyncio.run(go())


def test_shared_consumers_take_even_shares() -> None:
    async def scenario(world: World) -> None:
        sinks = [await world.consumer(name) for name in ("a", "bb", "ccc")]
        world.publish(9)
        assert [len(sink.received) for sink in sinks] == [3, 3, 3]
        world.publish(1)
        world.publish(1)
        assert sorted(len(sink.received) for sink in sinks) == [3, 4, 4]

    run(scenario)


def test_what_one_cannot_take_goes_to_the_others_and_only_the_rest_is_dropped() -> None:
    async def scenario(world: World) -> None:
        few = await world.consumer("a", permits=2)
        more = await world.consumer("bb", permits=5)
        world.publish(10)
        assert len(few.received) == 2 and len(more.received) == 5
        assert world.subscription().dropped == 3

    run(scenario)


def test_a_lower_level_is_served_only_while_the_better_ones_take_nothing() -> None:
    async def scenario(world: World) -> None:
        best = await world.consumer("a", permits=3)
        spare = await world.consumer("bb", priority_level=1)
        world.publish(5)
        assert len(best.received) == 3 and len(spare.received) == 2

    run(scenario)


def test_a_full_connection_misses_messages_and_delays_no_other() -> None:
    async def scenario(world: World) -> None:
        slow = await world.consumer("a", subscription="slow")
        fast = await world.consumer("a", subscription="fast")
        slow.writable = False
        world.publish(4)
        assert not slow.received and len(fast.received) == 4
        assert world.subscription("slow").dropped == 4
        assert world.subscription("fast").dropped == 0

    run(scenario)


def test_an_exclusive_consumer_misses_nothing_outside_of_its_key_ranges() -> None:
    async def scenario(world: World) -> None:
        slot = slot_of(b"k")
        policy = KeySharedPolicy(KeySharedMode.STICKY, ((slot, slot),))
        sink = await world.consumer("a", EXCLUSIVE, permits=2, key_shared=policy)
        world.publish(3, key="another")
        world.publish(2, key="k")
        assert len(sink.received) == 2
        assert world.subscription().dropped == 0
        world.publish(1, key="k")
        assert world.subscription().dropped == 1

    run(scenario)


def test_a_key_goes_to_its_owner_and_is_dropped_while_that_one_takes_nothing() -> None:
    async def scenario(world: World) -> None:
        ranges = ((0, 65535),)
        policy = KeySharedPolicy(KeySharedMode.STICKY, ranges)
        owner = await world.consumer("a", KEY_SHARED, permits=2, key_shared=policy)
        world.publish(3, key="k")
        assert len(owner.received) == 2
        assert world.subscription().dropped == 1
        with pytest.raises(ConsumerAssignError):
            await world.consumer("bb", KEY_SHARED)

    run(scenario)


def test_nothing_counts_as_dropped_before_the_first_consumer() -> None:
    async def scenario(world: World) -> None:
        await world.topic.subscription("s", None, {}, create=True)
        world.publish(2)
        assert world.subscription().dropped == 0
        await world.consumer("a")
        world.subscription().close("for the test")
        world.publish(2)
        assert world.subscription().dropped == 2

    run(scenario)


def test_many_subscriptions_are_offered_a_run_in_turns_of_the_loop_and_in_order() -> None:
    async def scenario(world: World) -> None:
        sinks = [await world.consumer("a", subscription=f"s{n}") for n in range(600)]
        world.publish(2)
        world.publish(1)
        assert world.published == []  # the producer's bytes still count as in use
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.published == [0, 2]
        assert all(sink.entry_ids == [0, 1, 2] for sink in sinks)

    run(scenario)


def test_closing_ends_what_is_under_way() -> None:
    async def scenario(world: World) -> None:
        for number in range(600):
            await world.consumer("a", subscription=f"s{number}")
        world.publish(1)
        assert not world.published
        await world.topic.close()
        assert world.published == [0]

    run(scenario)


def test_runs_that_wait_share_whom_they_are_for() -> None:
    async def scenario(world: World) -> None:
        for number in range(600):
            await world.consumer("a", subscription=f"s{number}")
        for _ in range(50):
            world.publish(1)
        assert len({id(offer.audience) for offer in world.topic._offers}) == 1
        late = await world.consumer("a", subscription="late")
        world.publish(1)
        for _ in range(200):
            await asyncio.sleep(0)
        assert late.entry_ids == [50]

    run(scenario)
