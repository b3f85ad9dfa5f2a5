"""No ledger is deleted while its topic is being loaded, however long that takes.

Only after the loading is it known what policies keep and what deduplication must still read.
"""

import asyncio
from typing import Any

from topics_world import ORDERS, World, run

from managed_ledger.errors import StorageFull
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST
from pybroker.broker.deduplication import Deduplication
from pybroker.broker.persistent.producers import Producer, ProducerState
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.table import COMPACTION_THRESHOLD, DEDUPLICATION, RETENTION
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import SendRun
from pybroker.wire.message_metadata import build_entry

NAMESPACE = "public/default"
LONG_S = 60  # longer than the time from a log's opening to its first visit


async def publish(topic: Topic, name: str, sequence_id: int) -> None:
    producer = Producer(1, name, owner=None)  # type: ignore[arg-type]
    producer.state = ProducerState.WRITING
    run = SendRun(1, None)
    metadata = pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1)
    run.entries.append(build_entry(metadata, b"x"))
    run.message_counts.append(1)
    stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    topic.publish(producer, run, lambda position, error: stored.set_result(error))
    assert await stored is None


async def consumed(world: World) -> Topic:
    """A topic with a consumed ledger. Its log has not been visited since."""
    topic = await world.topic()
    subscription = await topic.subscription("s", EARLIEST, {}, create=True)
    await publish(topic, "p", 7)
    await topic.ledger.roll_over()
    await publish(topic, "q", 8)
    subscription.cursor.mark_delete(topic.ledger.last_confirmed)
    return topic


def load_slowly(world: World, monkeypatch: Any) -> None:
    recover = Topic._recover

    async def slowly(topic: Topic) -> None:
        await asyncio.sleep(LONG_S)
        await recover(topic)

    monkeypatch.setattr(Topic, "_recover", slowly)


def test_what_a_topic_s_retention_keeps_outlives_a_long_loading(monkeypatch) -> None:
    async def scenario(world: World) -> None:
        policy = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
        await world.topics.policies.set_for_namespace(NAMESPACE, RETENTION, policy)
        await consumed(world)
        await world.topics.unload(ORDERS)
        load_slowly(world, monkeypatch)
        ledger = (await world.topic()).ledger
        assert sum(info.entries for info in ledger.ledgers()) == 2
        await asyncio.sleep(30 * 60)
        assert sum(info.entries for info in ledger.ledgers()) == 2
        await asyncio.sleep(60 * 60)
        assert sum(info.entries for info in ledger.ledgers()) == 0

    run(scenario)


def test_what_is_to_be_compacted_outlives_a_long_loading(monkeypatch) -> None:
    async def scenario(world: World) -> None:
        await world.topics.policies.set_for_namespace(NAMESPACE, COMPACTION_THRESHOLD, 1 << 30)
        await consumed(world)
        await world.topics.unload(ORDERS)
        load_slowly(world, monkeypatch)
        ledger = (await world.topic()).ledger
        await asyncio.sleep(30 * 60)
        assert sum(info.entries for info in ledger.ledgers()) == 2

    run(scenario)


def test_what_deduplication_has_still_to_read_outlives_a_long_loading(monkeypatch) -> None:
    read = ManagedLedger.read

    async def slowly(ledger: ManagedLedger, *arguments: Any) -> Any:
        await asyncio.sleep(LONG_S)
        return await read(ledger, *arguments)

    async def scenario(world: World) -> None:
        await consumed(world)
        await world.topics.unload(ORDERS)
        await world.topics.policies.set_for_namespace(NAMESPACE, DEDUPLICATION, True)
        monkeypatch.setattr(ManagedLedger, "read", slowly)
        deduplication = (await world.topic()).deduplication
        assert deduplication is not None
        assert [deduplication.last_sequence_id(name) for name in "pq"] == [7, 8]

    run(scenario)


def test_what_nobody_keeps_goes_soon_after_the_loading(monkeypatch) -> None:
    async def scenario(world: World) -> None:
        await consumed(world)
        await world.topics.unload(ORDERS)
        load_slowly(world, monkeypatch)
        ledger = (await world.topic()).ledger
        assert sum(info.entries for info in ledger.ledgers()) == 2
        await asyncio.sleep(15)
        assert sum(info.entries for info in ledger.ledgers()) == 0
        assert ledger.trimmer.kept_from == ()  # an idle ledger keeps nothing itself

    run(scenario)


def entries_of(topic: Topic) -> int:
    return sum(info.entries for info in topic.ledger.ledgers())


async def after_a_crash(world: World, monkeypatch: Any) -> Topic:
    """The topic, loaded after a crash that left no snapshot of deduplication."""

    async def nothing(deduplication: Deduplication) -> None:
        pass

    await consumed(world)
    with monkeypatch.context() as crash:
        crash.setattr(Deduplication, "snapshot", nothing)
        await world.topics.unload(ORDERS)
    return await world.topic()


def test_what_deduplication_read_at_the_loading_goes_though_nobody_publishes(monkeypatch) -> None:
    """The log is read once, and not kept for deduplication any more."""

    async def scenario(world: World) -> None:
        topic = await after_a_crash(world, monkeypatch)
        await asyncio.sleep(60)
        assert entries_of(topic) == 2
        await asyncio.sleep(120)
        assert entries_of(topic) == 0
        visits = len(world.factory.housekeeper)
        await asyncio.sleep(600)
        assert len(world.factory.housekeeper) == visits  # an idle topic costs nothing

    run(scenario, broker_deduplication_enabled=True)


def test_what_deduplication_could_not_write_down_is_tried_again(monkeypatch) -> None:
    async def scenario(world: World) -> None:
        topic = await after_a_crash(world, monkeypatch)
        put, refused = world.backend.metadata.put, []

        def no_room(key: str, *arguments: Any, **options: Any) -> "asyncio.Future[int]":
            if not key.startswith("/deduplication/") or refused:
                return put(key, *arguments, **options)
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(StorageFull("no room"))
            refused.append(key)
            return failed

        monkeypatch.setattr(world.backend.metadata, "put", no_room)
        await asyncio.sleep(130)
        assert (len(refused), entries_of(topic)) == (1, 2)
        await asyncio.sleep(130)
        assert entries_of(topic) == 0

    run(scenario, broker_deduplication_enabled=True)
