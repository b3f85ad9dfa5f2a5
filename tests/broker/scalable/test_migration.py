"""An ordinary topic becomes a scalable one, as a whole or not at all, with everything it has."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, cast

import pytest
from mortal_backend import Mortal
from topics_world import Owner, World, run
from virtual_loop import run_virtually

from managed_ledger.errors import ManagedLedgerError, StorageFailed, StorageFull
from managed_ledger.position import EARLIEST
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import NotAllowed, TopicNotFound, TopicTerminated
from pybroker.base.names import TopicName, any_topic
from pybroker.broker.deletion.deletions import NameNotFree
from pybroker.broker.namespaces.tenants import Conflict, InUse
from pybroker.broker.persistent.producers import Producer
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.controllers import Controllers, GroupKey, Member
from pybroker.broker.scalable.layout import Layout
from pybroker.broker.scalable.layouts import Layouts
from pybroker.broker.scalable.migration import Migration
from pybroker.broker.scalable.record import BadSegments, TopicRecord, migrated, of_segment
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest, SubscriptionType

SCALABLE: Final = any_topic("topic://public/default/orders")
ORDERS: Final = any_topic("persistent://public/default/orders")
V5: Final = {"__pulsar.v5.managed": "true"}
Work = Callable[[World], Awaitable[None]]


def migration(world: World) -> Migration:
    topics = world.topics
    return Migration(topics, topics.scalable, world.backend.metadata, topics._clock)


async def migrate(world: World, force: bool = False) -> TopicRecord:
    return await migration(world).migrate(SCALABLE, force)


def parts(partitions: int) -> list[TopicName]:
    return [ORDERS.partition_at(index) for index in range(partitions)] or [ORDERS]


async def begin(world: World, partitions: int) -> None:
    """A message in each part, and a subscription that has not acknowledged it."""
    if partitions:
        await world.topics.create_partitioned(ORDERS, partitions, {"team": "a"})
    for part in parts(partitions):
        topic = await world.topic(part)
        await topic.subscription("billing", EARLIEST, {"a": "b"}, create=True)
        producer = await world.producer(topic)
        await world.publish(topic, producer)
        await topic.producers.remove(producer)


def scenario(work: Work, partitions: int = 2) -> None:
    async def go(world: World) -> None:
        await begin(world, partitions)
        await work(world)

    run(go)


async def segments(world: World) -> list[Topic]:
    record = await world.topics.scalable.settled(SCALABLE)
    return [await world.topic(of_segment(SCALABLE, each)) for each in record.segments.values()]


async def consume_all(world: World) -> None:
    for topic in await segments(world):
        for subscription in topic.subscriptions.values():
            await subscription.skip_all()


# -- the record


@pytest.mark.parametrize(("partitions", "count"), [(0, 1), (1, 1), (3, 3)])
def test_the_parts_are_sealed_and_as_many_segments_come_after_all_of_them(
    partitions: int, count: int
) -> None:
    record = migrated(SCALABLE, partitions, 7)
    assert [each.ordinary for each in record.sealed] == [str(each) for each in parts(partitions)]
    assert {(each.start, each.end) for each in record.sealed} == {(0, 65_535)}
    assert [each.id for each in record.active] == list(range(count, 2 * count))
    assert all(each.parents == tuple(range(count)) for each in record.active)
    assert (record.epoch, record.next_id) == (0, 2 * count)


def test_a_record_holds_so_many_segments() -> None:
    with pytest.raises(BadSegments, match="5001 partitions"):
        migrated(SCALABLE, 5001, 0)


# -- what it has, comes along


@pytest.mark.parametrize("partitions", [0, 2])
def test_messages_and_subscriptions_stay_and_new_segments_take_what_comes(partitions: int) -> None:
    async def work(world: World) -> None:
        record = await migrate(world)
        for each in record.sealed:
            parent = await world.topic(of_segment(SCALABLE, each))
            assert parent.terminated and parent.subscriptions["billing"].backlog == 1
            with pytest.raises(TopicTerminated):
                await world.producer(parent)
        for each in record.active:
            child = await world.topic(of_segment(SCALABLE, each))
            assert child.subscriptions["billing"].cursor.properties == {"a": "b"}
            await world.publish(child, await world.producer(child))
            assert child.subscriptions["billing"].backlog == 1
        assert record.properties == ({"team": "a"} if partitions else {})
        operation = world.topics.scalable.last_operations(SCALABLE)[-1]
        assert (operation.name, operation.status) == ("migrate", "success")

    scenario(work, partitions)


def test_a_subscription_of_one_partition_is_on_all_new_segments() -> None:
    async def work(world: World) -> None:
        last = await world.topic(parts(2)[1])
        await last.subscription("late", EARLIEST, {}, create=True)
        record = await migrate(world)
        for each in record.active:
            child = await world.topic(of_segment(SCALABLE, each))
            assert sorted(child.subscriptions) == ["billing", "late"]

    scenario(work)


def test_its_schemas_and_permissions_come_along() -> None:
    async def work(world: World) -> None:
        topics, text = world.topics, StoredSchema("s", 1, b"", {})
        version = await topics.schemas.add(ORDERS, text)
        await topics.permissions.grant_on_topic(ORDERS, "ann", ["consume"])
        await migrate(world)
        assert await topics.schemas.find(SCALABLE, text) == version
        granted = topics.permissions.grants("public/default").topics
        assert granted[str(SCALABLE)] == granted[str(ORDERS)]

    scenario(work)


# -- clients


def test_clients_of_the_v5_sdk_hear_of_the_segments_and_groups_register_again() -> None:
    async def work(world: World) -> None:
        layouts, told = Layouts(world.topics, world.topics._clock), list[Layout]()
        controllers = Controllers(layouts, world.topics, 60)
        before = await layouts.begin(ORDERS, False, told.append)
        left: list[str] = []
        await controllers.register(
            GroupKey(ORDERS, "billing", 0), Member("c", lambda _: None, left.append)
        )
        await migrate(world)
        after = told[-1]
        assert [each.topic for each in after.segments[:2]] == [
            each.topic for each in before.segments
        ]
        assert [each.sealed for each in after.segments] == [True, True, False, False]
        assert len(left) == 1 and not controllers.groups
        assert await layouts.meant(ORDERS) == SCALABLE
        assert (await layouts.begin(SCALABLE, False, lambda _: None)).says_the_same(after)
        await controllers.close()
        await layouts.close()

    scenario(work)


def test_a_stream_consumer_gets_new_segments_when_all_parts_are_drained() -> None:
    async def work(world: World) -> None:
        layouts, heard = Layouts(world.topics, world.topics._clock), list[list[int]]()
        controllers = Controllers(layouts, world.topics, 60)
        await migrate(world)
        member = Member("c", lambda told: heard.append([s.id for s in told.segments]), print)
        first = await controllers.register(GroupKey(SCALABLE, "billing", 0), member)
        assert [each.id for each in first.segments] == [0, 1]
        await consume_all(world)
        await asyncio.sleep(1)
        assert sorted(heard[-1]) == [0, 1, 2, 3]
        await controllers.close()
        await layouts.close()

    scenario(work)


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_other_clients_must_be_closed_first_or_are_left_behind_by_force(kind: str) -> None:
    async def work(world: World) -> None:
        topic = await world.topic(parts(2)[1])
        properties: dict[str, str] = V5
        for properties in (V5, {}):
            if kind == "producer":
                producer = Producer(1, f"p{len(properties)}", Owner(), properties=properties)
                await topic.add_producer(producer, lambda error: None)
            else:
                request = SubscribeRequest(1, f"c{len(properties)}", properties=properties)
                await add_consumer(topic, request)
        with pytest.raises(Conflict, match=rf"orders-partition-1 .* {kind} .0 .*not one of the V5"):
            await migrate(world)
        assert world.topics.scalable.find(SCALABLE) is None
        record = await migrate(world, force=True)
        assert [each.id for each in record.active] == [2, 3] and topic.terminated

    scenario(work)


def test_a_stream_consumer_of_the_sdk_is_known_by_its_group() -> None:
    """It has no property on segments that were assigned to it."""

    async def work(world: World) -> None:
        layouts = Layouts(world.topics, world.topics._clock)
        controllers = Controllers(layouts, world.topics, 60)
        topic = await world.topic(parts(2)[1])
        await add_consumer(topic, SubscribeRequest(1, "v5-stream-x-seg-1"))
        with pytest.raises(Conflict, match="consumer v5-stream-x-seg-1 of billing is not one"):
            await migrate(world)
        member = Member("v5-stream-x", lambda _: None, lambda _: None)
        await controllers.register(GroupKey(ORDERS, "billing", 0), member)
        assert (await migrate(world)).active
        await controllers.close()
        await layouts.close()

    scenario(work)


async def add_consumer(topic: Topic, request: SubscribeRequest) -> None:
    subscription = topic.subscriptions["billing"]
    consumer = Consumer(request, cast(Any, Owner()))
    await subscription.add_consumer(consumer, SubscriptionType.SHARED)


# -- what is refused


def test_what_cannot_be_made_scalable_is_refused() -> None:
    async def work(world: World) -> None:
        with pytest.raises(TopicNotFound, match="absent does not exist"):
            await migration(world).migrate(any_topic("topic://public/default/absent"))
        with pytest.raises(NotAllowed, match="another name"):
            await migration(world).migrate(any_topic("topic://public/default/__transaction_log_1"))
        await migrate(world)
        with pytest.raises(Conflict, match="exists already"):
            await migrate(world)

    scenario(work)


def test_the_ordinary_topic_is_changed_and_deleted_as_the_scalable_one_only() -> None:
    async def work(world: World) -> None:
        topics = world.topics
        await migrate(world)
        for refused in (
            topics.delete(parts(2)[0], force=True),
            topics.delete_partitioned(ORDERS, force=True),
            topics.partitioned.grow(ORDERS, 4),
            topics.create_partitioned(ORDERS, 2),
        ):
            with pytest.raises(Conflict, match="was made scalable"):
                await refused

    scenario(work)


# -- afterwards


@pytest.mark.parametrize("partitions", [0, 2])
def test_consumed_parts_are_pruned_and_nobody_can_create_them_again(partitions: int) -> None:
    """A client of 4.x would publish where nobody reads."""

    async def work(world: World) -> None:
        topics = world.topics
        record = await migrate(world)
        parents = [each.id for each in record.sealed]
        assert await topics.scalable.pruner.prune_unneeded(SCALABLE) == []
        await consume_all(world)
        assert await topics.scalable.pruner.prune_unneeded(SCALABLE) == parents
        for part in parts(partitions):
            assert not world.exists(part)
            assert await topics.get(part) is None
            with pytest.raises(TopicTerminated, match="open topic://public/default/orders with"):
                await topics.get(part, create=True)
        assert (await topics.lists.get("public/default")).names == [], "patterns find none"
        with pytest.raises(Conflict, match="was made scalable"):
            await topics.create_partitioned(ORDERS, 2)

    scenario(work, partitions)


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_deletion_takes_the_ordinary_topic_along_and_frees_its_name(
    partitions: int, is_pruned: bool
) -> None:
    async def work(world: World) -> None:
        topics = world.topics
        await migrate(world)
        if is_pruned:
            await consume_all(world)
            await topics.scalable.pruner.prune_unneeded(SCALABLE)
        await topics.scalable.delete(SCALABLE)
        assert not any(map(world.exists, parts(partitions)))
        assert topics.tenants.partitions(ORDERS) == 0
        await begin(world, 3)
        assert not topics.was_migrated(ORDERS)

    scenario(work, partitions)


@pytest.mark.parametrize("partitions", [0, 2])
def test_nobody_creates_the_ordinary_topic_while_its_deletion_is_not_finished(
    partitions: int,
) -> None:
    """What was published there would be deleted with the rest."""

    async def work(world: World) -> None:
        topics, room = world.topics, list[bool]()

        async def forget(name: TopicName) -> None:
            if not room:
                raise StorageFull("there is no room")

        topics.deletions.also_forget(forget)
        await migrate(world)
        await topics.scalable.delete(SCALABLE)
        assert topics.scalable.find(SCALABLE) is None
        for part in parts(partitions):
            with pytest.raises(NameNotFree):
                await topics.get(part, create=True)
        with pytest.raises(NameNotFree):
            await topics.create_partitioned(ORDERS, 3)
        room.append(True)
        await begin(world, partitions)
        await asyncio.sleep(60)
        for part in parts(partitions):
            assert (await world.topic(part)).subscriptions["billing"].backlog == 1

    scenario(work, partitions)


def test_a_scalable_topic_of_the_same_name_that_was_made_otherwise_changes_nothing() -> None:
    async def work(world: World) -> None:
        await world.topics.scalable.create(SCALABLE)
        topic = await world.topic(parts(2)[0])
        await world.publish(topic, await world.producer(topic))
        assert not world.topics.was_migrated(ORDERS)
        with pytest.raises(InUse):
            await world.topics.delete_partitioned(ORDERS)
        with pytest.raises(Conflict, match="exists already"):
            await migrate(world)

    scenario(work)


# -- beside other changes


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_migration_waits_for_an_unload_and_for_another_migration(partitions: int) -> None:
    async def work(world: World) -> None:
        alarms: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, each: alarms.append(each))
        begun = [asyncio.ensure_future(migrate(world)) for _ in range(2)]
        unloading = [asyncio.ensure_future(world.topics.unload(ORDERS))]
        for _ in range(20):
            await asyncio.sleep(0)
            unloading.append(asyncio.ensure_future(world.topics.unload(ORDERS)))
        ended = await asyncio.gather(*begun, *unloading, return_exceptions=True)
        assert isinstance(ended[0], TopicRecord)
        assert isinstance(ended[1], TopicRecord | Conflict), "it found the first one decided"
        assert ended[2:] == [None] * len(unloading) and alarms == []
        await check_after(world, partitions)

    scenario(work, partitions)


def test_an_ordinary_topic_that_is_deleted_meanwhile_leaves_no_scalable_one() -> None:
    async def work(world: World) -> None:
        topics = world.topics
        found = migration(world)._found
        slow = migration(world)

        async def meanwhile(*names: TopicName) -> int:
            partitions = await found(*names)
            await topics.delete(ORDERS, force=True)
            return partitions

        cast(Any, slow)._found = meanwhile
        with pytest.raises(Conflict, match="changed meanwhile"):
            await slow.migrate(SCALABLE)
        assert topics.scalable.find(SCALABLE) is None

    scenario(work, partitions=0)


def test_what_was_decided_is_carried_out_by_the_next_request() -> None:
    async def work(world: World) -> None:
        scalable = world.topics.scalable
        carry_out = scalable._carry_out

        async def once(*names: Any) -> None:
            cast(Any, scalable)._carry_out = carry_out
            raise StorageFull("there is no room")

        cast(Any, scalable)._carry_out = once
        with pytest.raises(StorageFull):
            await migrate(world)
        assert len((await migrate(world)).active) == 2
        await check_after(world, 2)
        with pytest.raises(Conflict, match="exists already"):
            await migrate(world)

    scenario(work)


def test_a_migration_after_a_deletion_that_failed_in_the_end_is_carried_out() -> None:
    """What is known of a topic goes with its record, whoever has deleted that."""

    async def work(world: World) -> None:
        topics = world.topics
        await migrate(world)
        delete = topics.delete_all_of

        async def fails_late(*doomed: Any) -> None:
            await delete(*doomed)
            raise StorageFailed("the last answer is lost")

        cast(Any, topics).delete_all_of = fails_late
        with pytest.raises(StorageFailed):
            await topics.scalable.delete(SCALABLE)
        del cast(Any, topics).delete_all_of
        await begin(world, 2)
        assert topics.scalable.owned() == []
        await migrate(world)
        await check_after(world, 2)

    scenario(work)


# -- crashes


async def dies_at(steps: int, partitions: int) -> bool:
    """Whether the migration was interrupted; checks what the next broker makes of it."""
    backend = MemoryBackend()
    await backend.open()
    mortal = Mortal(backend, steps)
    world = World(cast(MemoryBackend, mortal), BrokerConfig())
    await begin(world, partitions)
    mortal.counting = True
    with suppress(StorageFailed):
        await migrate(world)
    was_interrupted = mortal.died
    mortal.died = True
    for last in (world.topics.close, world.factory.close):
        with suppress(ManagedLedgerError):
            await last()
    after = World(backend, BrokerConfig())
    await check_after(after, partitions)
    await after.topics.close()
    await after.factory.close()
    await backend.close()
    return was_interrupted


async def check_after(world: World, partitions: int) -> None:
    topics = [await world.topic(part) for part in parts(partitions)]
    assert all(topic.subscriptions["billing"].backlog == 1 for topic in topics)
    if world.topics.scalable.find(SCALABLE) is None:
        for topic in topics:
            await world.publish(topic, await world.producer(topic))
        return
    record = await world.topics.scalable.settled(SCALABLE)
    assert all(topic.terminated for topic in topics)
    for each in record.active:
        child = await world.topic(of_segment(SCALABLE, each))
        assert list(child.subscriptions) == ["billing"]
        await world.publish(child, await world.producer(child))


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_migration_that_dies_at_any_step_has_happened_or_not(partitions: int) -> None:
    async def go() -> None:
        steps = 0
        while await dies_at(steps, partitions):
            steps += 1
        assert steps > 4, "the record, each child with its subscriptions, the end of the parts"

    run_virtually(go())
