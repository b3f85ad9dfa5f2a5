"""Groups and transactions through Kafka's own clients, unchanged."""

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer

from pybroker.client import Client, InitialPosition
from pybroker.testing import RunningBroker, broker

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def topic(running: RunningBroker, request: pytest.FixtureRequest) -> str:
    """A new topic with four partitions."""
    name = re.sub(r"[^\w-]", "-", request.node.name)[:100]
    admin = AdminClient({"bootstrap.servers": running.kafka_bootstrap})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result(TIMEOUT_S)
    return str(name)


def transactional(running: RunningBroker, name: str, **more: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": running.kafka_bootstrap, "transactional.id": name, **more}
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


@contextmanager
def consumer(running: RunningBroker, group: str, *topics: str, **more: Any) -> Iterator[Consumer]:
    settings = {
        "bootstrap.servers": running.kafka_bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        **more,
    }
    created = Consumer(settings)
    created.subscribe(list(topics))
    try:
        yield created
    finally:
        created.close()


def read(consuming: Consumer, count: int) -> list[Any]:
    """The next messages, however long they take."""
    until_s, found = time.monotonic() + TIMEOUT_S, list[Any]()
    while len(found) < count and time.monotonic() < until_s:
        message = consuming.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
    return found


def values(messages: list[Any]) -> list[bytes]:
    return sorted(each.value() for each in messages)


def fill(running: RunningBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": running.kafka_bootstrap})
    for each in range(count):
        producer.produce(topic, str(each).encode(), partition=each % 4)
    assert producer.flush(TIMEOUT_S) == 0


# -- groups


@pytest.mark.parametrize(
    ("protocol", "assignor"),
    [
        ("classic", "range"),
        ("classic", "roundrobin"),
        ("classic", "cooperative-sticky"),
        ("consumer", "uniform"),
        ("consumer", "range"),
    ],
)
@pytest.mark.kafka_client("confluent-kafka", "classic groups", "groups of KIP-848")
def test_two_consumers_share_a_topic_and_one_takes_over(
    running: RunningBroker, topic: str, protocol: str, assignor: str
) -> None:
    more: dict[str, Any] = {"group.protocol": protocol}
    if protocol == "classic":
        more |= {"partition.assignment.strategy": assignor, "heartbeat.interval.ms": 500}
    else:
        more["group.remote.assignor"] = assignor
    group = f"shared-{assignor}-{protocol}"
    with consumer(running, group, topic, **more) as first:
        with consumer(running, group, topic, **more) as second:

            def are_shared() -> bool:
                first.poll(0.05), second.poll(0.05)
                return [len(each.assignment()) for each in (first, second)] == [2, 2]

            running.wait_until(are_shared)
        running.wait_until(lambda: first.poll(0.05) is None and len(first.assignment()) == 4)
        fill(running, topic, 8)
        assert values(read(first, 8)) == [str(each).encode() for each in range(8)]
        first.commit(asynchronous=False)
    fill(running, topic, 1)
    with consumer(running, group, topic, **more) as later:
        assert values(read(later, 1)) == [b"0"]


@pytest.mark.kafka_client("kafka-python", "classic groups")
def test_kafka_python_goes_on_where_it_was(running: RunningBroker, topic: str) -> None:
    fill(running, topic, 4)
    settings = {
        "bootstrap_servers": running.kafka_bootstrap,
        "group_id": "python",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "consumer_timeout_ms": int(TIMEOUT_S * 1000),
    }
    for first, count in ((0, 4), (4, 2)):
        consuming = KafkaConsumer(topic, **settings)
        found = [message.value for _, message in zip(range(count), consuming, strict=False)]
        assert len(found) == count, first
        consuming.commit()
        consuming.close()
        fill(running, topic, 2)


@pytest.mark.kafka_client("confluent-kafka", "static members")
def test_a_static_member_comes_back_without_a_rebalance(running: RunningBroker, topic: str) -> None:
    rebalances: list[str] = []
    static = {"group.instance.id": "one", "session.timeout.ms": 30_000}
    with consumer(running, "static", topic) as other:
        other.subscribe(
            [topic],
            on_assign=lambda _, places: rebalances.append("assigned"),
            on_revoke=lambda _, places: rebalances.append("revoked"),
        )
        with consumer(running, "static", topic, **static) as mine:

            def are_shared() -> bool:
                mine.poll(0.05), other.poll(0.05)
                return len(mine.assignment()) == len(other.assignment()) == 2

            running.wait_until(are_shared)
            before = sorted(each.partition for each in mine.assignment())
        rebalances.clear()
        with consumer(running, "static", topic, **static) as again:
            running.wait_until(lambda: again.poll(0.05) is None and len(again.assignment()) == 2)
            assert sorted(each.partition for each in again.assignment()) == before
            other.poll(0.5)
        assert rebalances == []


# -- transactions


@pytest.mark.kafka_client("confluent-kafka", "transactions")
def test_committed_messages_are_read_and_aborted_ones_are_not(
    running: RunningBroker, topic: str
) -> None:
    producer = transactional(running, "commit-abort")
    for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        for partition in range(4):
            producer.produce(topic, f"{number}-{partition}".encode(), partition=partition)
        ends(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"last", partition=0)
    producer.commit_transaction(TIMEOUT_S)
    committed = [f"0-{each}".encode() for each in range(4)] + [b"last"]
    with consumer(running, "committed", topic) as consuming:
        assert values(read(consuming, 5)) == committed
        assert consuming.poll(0.5) is None


def test_nothing_behind_an_open_transaction_is_read_before_its_end(
    running: RunningBroker, topic: str
) -> None:
    producer = transactional(running, "open")
    producer.begin_transaction()
    producer.produce(topic, b"in it", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    fill(running, topic, 1)
    more = {"isolation.level": "read_uncommitted"}
    with (
        consumer(running, "open", topic) as committed,
        consumer(running, "open-all", topic, **more) as everything,
    ):
        assert values(read(everything, 2)) == [b"0", b"in it"]
        assert committed.poll(1.0) is None
        producer.commit_transaction(TIMEOUT_S)
        assert values(read(committed, 2)) == [b"0", b"in it"]


@pytest.mark.kafka_client("confluent-kafka", "offsets in transactions")
def test_a_pipeline_commits_what_it_read_with_what_it_wrote(
    running: RunningBroker, topic: str
) -> None:
    fill(running, topic, 8)
    output = f"{topic}-out"
    producer = transactional(running, "pipeline")
    with consumer(running, "pipeline", topic) as consuming:
        for ends in (producer.abort_transaction, producer.commit_transaction):
            messages = read(consuming, 8)
            producer.begin_transaction()
            for message in messages:
                producer.produce(output, b"<" + message.value() + b">")
            positions = consuming.position(consuming.assignment())
            metadata = consuming.consumer_group_metadata()
            producer.send_offsets_to_transaction(positions, metadata, TIMEOUT_S)
            ends(TIMEOUT_S)
            for place in consuming.committed(consuming.assignment(), TIMEOUT_S):
                if place.offset < 0:
                    consuming.seek(TopicPartition(topic, place.partition, 0))
        assert sum(each.offset for each in consuming.committed(consuming.assignment())) == 8
    with consumer(running, "check", output) as checking:
        assert values(read(checking, 8)) == [f"<{each}>".encode() for each in range(8)]
        assert checking.poll(0.5) is None


@pytest.mark.kafka_client("confluent-kafka", "zombies are fenced")
def test_a_zombie_producer_is_fenced(running: RunningBroker, topic: str) -> None:
    zombie = transactional(running, "zombie")
    zombie.begin_transaction()
    zombie.produce(topic, b"from the zombie", partition=0)
    assert zombie.flush(TIMEOUT_S) == 0
    newer = transactional(running, "zombie")
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    newer.begin_transaction()
    newer.produce(topic, b"from the newer", partition=0)
    newer.commit_transaction(TIMEOUT_S)
    with consumer(running, "zombie", topic) as consuming:
        assert values(read(consuming, 1)) == [b"from the newer"]
        assert consuming.poll(0.5) is None


def test_a_pulsar_consumer_reads_what_a_kafka_transaction_committed(
    running: RunningBroker, topic: str
) -> None:
    producer = transactional(running, "to-pulsar")
    with Client(running.service_url) as client:
        reading = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
        for value, ends in ((b"no", "abort_transaction"), (b"yes", "commit_transaction")):
            producer.begin_transaction()
            producer.produce(topic, value, partition=1)
            getattr(producer, ends)(TIMEOUT_S)
        assert reading.receive(10_000).data() == b"yes"


@pytest.mark.kafka_client("aiokafka", "transactions", "offsets in transactions")
def test_aiokafka_commits_and_aborts(running: RunningBroker, topic: str) -> None:
    async def run() -> list[bytes]:
        producer = AIOKafkaProducer(
            bootstrap_servers=running.kafka_bootstrap, transactional_id="aio"
        )
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"yes", partition=0)
                offsets = {AioPartition(topic, 0): 7}
                await producer.send_offsets_to_transaction(offsets, "aio")
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"no", partition=0)
                    raise ZeroDivisionError
            async with producer.transaction():
                await producer.send_and_wait(topic, b"again", partition=0)
        finally:
            await producer.stop()
        consuming = AIOKafkaConsumer(
            bootstrap_servers=running.kafka_bootstrap,
            group_id="aio",
            isolation_level="read_committed",
            enable_auto_commit=False,
        )
        await consuming.start()
        try:
            place = AioPartition(topic, 0)
            consuming.assign([place])
            assert await consuming.committed(place) == 7
            await consuming.seek_to_beginning(place)
            found = [await asyncio.wait_for(consuming.getone(), TIMEOUT_S) for _ in range(2)]
        finally:
            await consuming.stop()
        return [each.value for each in found]

    assert asyncio.run(run()) == [b"yes", b"again"]


@pytest.mark.parametrize(
    "point",
    [
        f"transaction.{step}.{when}"
        for step in ("decided", "marker", "pending_ack", "completed")
        for when in ("before", "after")
    ],
)
def test_a_commit_of_a_client_survives_a_crash_at_each_step(point: str) -> None:
    with broker(kafka=True, faults=True) as running:
        fill(running, "in", 1)
        producer = transactional(running, "crash")
        with consumer(running, "crash", "in") as consuming:
            assert values(read(consuming, 1)) == [b"0"]
            producer.begin_transaction()
            producer.produce("out", b"<0>")
            positions = consuming.position(consuming.assignment())
            metadata = consuming.consumer_group_metadata()
            producer.send_offsets_to_transaction(positions, metadata, TIMEOUT_S)
            running.restart_after(running.faults.inject(point, "crash"))
            committing = threading.Thread(target=producer.commit_transaction, args=(60.0,))
            committing.start()
            committing.join(90.0)
            assert not committing.is_alive()
            place = TopicPartition("in", 0)
            running.wait_until(lambda: consuming.committed([place], TIMEOUT_S)[0].offset == 1)
        with consumer(running, "check", "out") as checking:
            assert values(read(checking, 1)) == [b"<0>"]
            assert checking.poll(0.5) is None
