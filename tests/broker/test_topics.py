"""Topics over a memory backend: loads are shared and retried, unloads and deletions awaited."""

import asyncio
from typing import Any

import pytest
from topics_world import ORDERS, Owner, World, run

from managed_ledger.errors import StorageFailed, StorageFull
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import (
    NoSuchPartition,
    NotAllowed,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.broker.namespaces.tenants import Conflict, NotFound
from pybroker.broker.persistent.producers import AccessMode, Producer
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.table import AUTO_TOPIC_CREATION
from pybroker.broker.schemas.registry import StoredSchema
from pybroker.broker.subscriptions import subscription as subscription_module
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest, SubscriptionType

P0 = TopicName.parse("orders-partition-0")


# -- loading


def test_concurrent_requests_share_one_load() -> None:
    async def scenario(world: World) -> None:
        first, second = await asyncio.gather(world.topic(), world.topic())
        assert first is second
        assert await world.topics.get("orders") is first

    run(scenario)


def test_who_gives_up_waiting_does_not_stop_the_load() -> None:
    async def scenario(world: World) -> None:
        impatient = asyncio.ensure_future(world.topic())
        patient = asyncio.ensure_future(world.topic())
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await patient).name == ORDERS

    run(scenario)


def test_a_load_that_failed_half_way_leaves_nothing_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The parts that were recovered would write beside those of the next load."""

    async def scenario(world: World) -> None:
        left: list[Topic] = []

        async def failing(topic: Topic) -> None:
            left.append(topic)
            raise StorageFailed("the disk does not answer")

        with monkeypatch.context() as patches:
            patches.setattr(Topic, "enable_deduplication", failing)
            with pytest.raises(StorageFailed):
                await world.topic()
        topic = await world.topic()
        assert left[0].ledger.closed and not left[0].buffer._log._live
        assert not topic.ledger.closed

    run(scenario, broker_deduplication_enabled=True)


def test_a_load_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        opening = world.factory.open
        failures = iter([OSError("the disk does not answer")])

        async def flaky(name: str) -> Any:
            for failure in failures:
                raise failure
            return await opening(name)

        monkeypatch.setattr(world.factory, "open", flaky)
        outcomes = await asyncio.gather(world.topic(), world.topic(), return_exceptions=True)
        assert all(isinstance(outcome, OSError) for outcome in outcomes)
        assert (await world.topic()).name == ORDERS

    run(scenario)


def test_what_is_not_there_is_none_or_made() -> None:
    async def scenario(world: World) -> None:
        assert await world.topics.get("orders") is None
        assert not world.topics.exists(ORDERS)
        await world.topics.require(ORDERS)
        assert world.topics.exists(ORDERS)

    run(scenario)


def test_auto_creation_follows_the_namespace_then_the_broker() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(TopicNotFound):
            await world.topics.require(ORDERS)
        creation = {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
        await world.topics.policies.set_for_namespace(
            "public/default", AUTO_TOPIC_CREATION, creation
        )
        assert (await world.topics.require(ORDERS)).name == ORDERS

    run(scenario, allow_auto_topic_creation=False)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("persistent://nobody/there/t", NotFound),
        ("persistent://public/default/parted", NotAllowed),
        ("persistent://public/default/parted-partition-3", NoSuchPartition),
        ("persistent://public/default/orders-partition-0", NoSuchPartition),
        ("persistent://public/default/t-s__transaction_pending_ack", NotAllowed),
        ("persistent://pulsar/system/__transaction_log_3", NotAllowed),
    ],
)
def test_what_cannot_be_a_topic_is_refused(name: str, error: type[Exception]) -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(TopicName.parse("parted"), 3)
        with pytest.raises(error):
            await world.topics.get(name, create=True)

    run(scenario)


# -- partitions


def test_a_partition_is_there_before_its_first_use() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        assert world.topics.exists(P0)
        assert await world.topics.get(P0) is not None
        assert await world.topics.partitions_for_client(ORDERS, auto_create=True) == 2
        assert await world.topics.partitions_for_client(P0, auto_create=True) == 0

    run(scenario)


def test_a_partition_that_is_not_there_is_not_found() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 2)
        for missing in (ORDERS.partition_at(2), TopicName.parse("none-partition-0")):
            with pytest.raises(TopicNotFound):
                await world.topics.partitions_for_client(missing, auto_create=False)
        assert await world.topics.partitions_for_client(P0, auto_create=False) == 0

    run(scenario)


def test_what_is_there_is_not_made_partitioned_even_while_it_loads() -> None:
    async def scenario(world: World) -> None:
        loading = asyncio.ensure_future(world.topic())
        await asyncio.sleep(0)
        with pytest.raises(Conflict):
            await world.topics.create_partitioned(ORDERS, 2)
        await loading
        with pytest.raises(Conflict):
            await world.topics.create(ORDERS)

    run(scenario)


def test_the_coordinators_topic_has_as_many_partitions_as_coordinators() -> None:
    async def scenario(world: World) -> None:
        topics = world.topics
        assert await topics.partitions_for_client(COORDINATOR_ASSIGN, auto_create=False) == 5

    run(scenario, transaction_coordinators=5)


# -- lists


async def listed(world: World, namespace: str) -> list[str]:
    found = await world.topics.lists.get(namespace)
    return [TopicName.parse(name).local for name in found.names]


def test_names_are_what_clients_can_use() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(TopicName.parse("parted"), 2)
        await world.topic(TopicName.parse("persistent://public/default/b/c"))
        await world.topic()
        await world.factory.open("public/default/persistent/orders-s__transaction_pending_ack")
        await world.factory.open("pulsar/system/persistent/__transaction_log_0")
        assert await listed(world, "public/default") == [
            "b/c",
            "orders",
            "parted-partition-0",
            "parted-partition-1",
        ]
        assert await listed(world, "pulsar/system") == []
        with pytest.raises(NotFound):
            await listed(world, "nobody/there")

    run(scenario)


# -- ends


def test_a_topic_in_use_is_deleted_only_by_force() -> None:
    async def scenario(world: World) -> None:
        await world.producer(await world.topic())
        with pytest.raises(Conflict):
            await world.topics.delete(ORDERS)
        await world.topics.delete(ORDERS, force=True)
        assert not world.topics.exists(ORDERS)
        with pytest.raises(TopicNotFound):
            await world.topics.delete(ORDERS)

    run(scenario)


def test_a_deleted_topic_takes_its_schemas_along() -> None:
    async def scenario(world: World) -> None:
        await world.topic()
        await world.topics.schemas.add(ORDERS, StoredSchema("s", 1, b""))
        await world.topics.delete(ORDERS)
        with pytest.raises(TopicNotFound):
            world.topics.schemas.get(ORDERS)

    run(scenario)


def test_who_asks_while_a_topic_goes_gets_it_anew() -> None:
    async def scenario(world: World) -> None:
        old = await world.topic()
        unloading = asyncio.ensure_future(world.topics.unload(ORDERS))
        await asyncio.sleep(0)
        new = await world.topic()
        assert unloading.done()
        assert new is not old
        await world.producer(new)
        with pytest.raises(ServiceNotReady):
            await world.producer(old)

    run(scenario)


class FullDisk(MemoryBackend):
    """Fails all writes once `full` is set."""

    full = False

    def _write(self, group: Any) -> "asyncio.Future[None]":
        done = super()._write(group)
        if self.full:
            done = asyncio.get_running_loop().create_future()
            done.set_exception(StorageFull("no space left"))
        return done


def test_an_unload_on_a_full_disk_leaves_no_client_on_the_old_topic() -> None:
    """A consumer left there would read what later transactions hide in the new topic."""

    async def scenario() -> None:
        backend = FullDisk()
        await backend.open()
        world = World(backend, BrokerConfig())
        old = await world.topic()
        position = await old.ledger.append_one(b"x")
        consumers = []
        for name in ("first", "second"):
            subscription = await old.subscription(name, EARLIEST, {}, create=True)
            consumers.append(Consumer(SubscribeRequest(1, name), Owner()))
            await subscription.add_consumer(consumers[-1], SubscriptionType.SHARED)
            subscription.acknowledge(consumers[-1], [position])
        backend.full = True
        with pytest.raises(StorageFull):
            await world.topics.unload(ORDERS)
        assert not any(subscription.consumers for subscription in old.subscriptions.values())
        assert old.ledger.closed
        backend.full = False
        assert await world.topic() is not old
        await world.factory.close()

    asyncio.run(scenario())


def test_two_ends_at_once_are_one() -> None:
    async def scenario(world: World) -> None:
        await world.topic()
        await asyncio.gather(
            world.topics.delete(ORDERS), world.topics.unload(ORDERS), world.topics.unload(ORDERS)
        )
        await world.topic()

    run(scenario)


def test_deleting_while_it_loads_waits_for_the_load() -> None:
    async def scenario(world: World) -> None:
        await world.topic()
        await world.topics.unload(ORDERS)
        loading = asyncio.ensure_future(world.topic())
        await asyncio.sleep(0)
        await world.topics.delete(ORDERS)
        assert (await loading).name == ORDERS
        assert not world.topics.exists(ORDERS)

    run(scenario)


def test_deleting_a_partitioned_topic_deletes_its_partitions() -> None:
    async def scenario(world: World) -> None:
        await world.topics.create_partitioned(ORDERS, 3)
        await world.producer(await world.topic(P0))
        with pytest.raises(Conflict):
            await world.topics.delete_partitioned(ORDERS)
        assert world.tenants.partitions(ORDERS) == 3
        await world.topics.delete_partitioned(ORDERS, force=True)
        assert await listed(world, "public/default") == []

    run(scenario)


def test_a_topic_comes_back_with_its_subscriptions_and_epoch() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.subscription("s", None, {}, create=True)
        await topic.reader_subscription("r", None)
        await topic.terminate()
        await world.topics.unload(ORDERS)
        again = await world.topic()
        assert list(again.subscriptions) == ["s"]
        assert again.terminated

    run(scenario)


def test_who_is_overtaken_by_the_end_of_the_log_hears_of_the_unload() -> None:
    """Any other error would make clients drop their connection."""

    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.ledger.append_one(b"x")
        await topic.ledger.close()
        for overtaken in (
            topic.subscription("s", None, {}, create=True),
            topic.add_producer(Producer(1, "p", Owner(), AccessMode.EXCLUSIVE), lambda: None),
        ):
            with pytest.raises(ServiceNotReady, match="is being unloaded"):
                await overtaken

    run(scenario)


# -- subscriptions of a topic


def test_concurrent_subscribers_share_one_subscription() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        first, second = await asyncio.gather(
            topic.subscription("s", None, {}, create=True),
            topic.subscription("s", None, {}, create=True),
        )
        assert first is second

    run(scenario)


def test_subscribing_while_the_topic_closes_is_refused() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscribing = asyncio.ensure_future(topic.subscription("s", None, {}, create=True))
        await asyncio.sleep(0)
        await world.topics.unload(ORDERS)
        with pytest.raises(ServiceNotReady):
            await subscribing

    run(scenario)


def test_subscribing_while_it_is_deleted_makes_a_new_one() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        old = await topic.subscription("s", None, {}, create=True)
        _, new = await asyncio.gather(
            topic.delete_subscription("s"), topic.subscription("s", None, {}, create=True)
        )
        assert new is not old
        assert topic.ledger.cursors["s"] is new.cursor
        with pytest.raises(SubscriptionNotFound):
            await topic.delete_subscription("other")

    run(scenario)


def test_a_reader_that_goes_leaves_its_name_to_the_next() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        for _ in range(3):
            subscription = await topic.reader_subscription("r", None)
            consumer = Consumer(SubscribeRequest(1, "c"), Owner())  # type: ignore[arg-type]
            await subscription.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
            subscription.remove_consumer(consumer)
            assert "r" not in topic.subscriptions
        last = await topic.subscription("r", None, {}, create=True)
        await topic.tasks.ended()
        assert topic.ledger.cursors["r"] is last.cursor

    run(scenario)


def test_a_reader_that_does_not_come_again_after_its_seek_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription_module, "READER_RETURN_S", 0)

    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await topic.reader_subscription("r", None)
        consumer = Consumer(SubscribeRequest(1, "c"), Owner())  # type: ignore[arg-type]
        await subscription.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
        await subscription.seek(EARLIEST)
        timer_is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(0, timer_is_over.set)
        await timer_is_over.wait()
        await topic.tasks.ended()
        assert not topic.subscriptions
        assert not topic.ledger.cursors

    run(scenario)


def test_a_request_in_the_turn_in_which_a_deletion_ends_delays_no_other() -> None:
    """The task has ended, but is still listed: waiting for it must let the loop run."""

    async def scenario(world: World) -> None:
        await world.topic()
        deletion = asyncio.ensure_future(world.topics.delete(ORDERS))
        asked: list[asyncio.Future[Topic | None]] = []
        while not deletion.done():
            asked.append(asyncio.ensure_future(world.topics.get(ORDERS)))
            await asyncio.sleep(0)
        assert await asyncio.gather(*asked) == [None] * len(asked)

    run(scenario)


def test_a_reader_that_seeks_again_has_as_long_to_come_back_as_the_first_time() -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscription = await topic.reader_subscription("r", EARLIEST)
        for _ in range(2):
            consumer = Consumer(SubscribeRequest(1, "c"), Owner())
            await subscription.add_consumer(consumer, SubscriptionType.EXCLUSIVE)
            await asyncio.sleep(subscription_module.READER_RETURN_S - 1)
            await subscription.seek(EARLIEST)
        await asyncio.sleep(subscription_module.READER_RETURN_S - 1)
        assert topic.subscriptions["r"] is subscription
        await asyncio.sleep(2)
        assert not topic.subscriptions

    run(scenario)


def test_the_last_message_is_there_though_the_one_before_is_trimmed_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        topic = await world.topic()
        await topic.ledger.append_one(b"x" * 20)
        await topic.ledger.roll_over()
        read, later = ManagedLedger.read, list[Position]()

        async def slow_read(ledger: ManagedLedger, *what: Any) -> Any:
            if not later:
                later.append(await ledger.append_one(b"x" * 20))
                await ledger.trim()
            return await read(ledger, *what)

        monkeypatch.setattr(ManagedLedger, "read", slow_read)
        assert await topic.last_message_id() == (later[0], -1)

    run(scenario)
