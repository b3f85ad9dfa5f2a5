"""The official Python client when the broker refuses, goes away, or must be exact."""

import re
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

import pybroker.testing
from pybroker.base.names import TopicName
from pybroker.broker.policies.table import MAX_MESSAGE_SIZE

SOON_MS = 30_000
NOTHING_MS = 200


def client_of(service_url: str) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(service_url, operation_timeout_seconds=30, logger=quiet)


@pytest.fixture
def official(wire_broker: Any) -> Iterator[pulsar.Client]:
    client = client_of(wire_broker.service_url)
    yield client
    client.close()


def earliest(client: pulsar.Client, topic: Any, name: str = "s", **options: Any) -> Any:
    position = pulsar.InitialPosition.Earliest
    return client.subscribe(topic, name, initial_position=position, **options)


def unload(broker: Any, topic: str) -> None:
    broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))


def test_a_message_larger_than_any_entry_travels_in_chunks(
    official: pulsar.Client, topic: str
) -> None:
    consumer = earliest(official, topic)
    producer = official.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    payload = bytes(range(256)) * (12 * 4096)
    producer.send(payload)
    producer.send(b"small")
    large = consumer.receive(SOON_MS)
    assert large.data() == payload
    assert consumer.receive(SOON_MS).data() == b"small"
    consumer.acknowledge(large)


def test_chunks_survive_deduplication(topic: str) -> None:
    settings = {"broker_deduplication_enabled": True, "max_message_size": 10_000}
    with pybroker.testing.broker(**settings) as broker:
        client = client_of(broker.service_url)
        consumer = earliest(client, topic)
        producer = client.create_producer(
            topic, "p", chunking_enabled=True, batching_enabled=False, send_timeout_millis=5000
        )
        for size in (50_000, 10, 70_000):
            producer.send(b"x" * size)
        assert [len(consumer.receive(SOON_MS).data()) for _ in range(3)] == [50_000, 10, 70_000]
        client.close()


def test_a_message_that_the_topic_s_policy_refuses_fails_alone(
    official: pulsar.Client, wire_broker: Any, topic: str
) -> None:
    """After NotAllowed this client would send it again, without end."""

    async def limit(running: Any) -> None:
        name = TopicName.parse(topic)
        await running.topics.policies.set_for_topic(name, MAX_MESSAGE_SIZE, 1000)
        await running.topics.following.told()

    producer = official.create_producer(topic, batching_enabled=False)
    wire_broker.call(limit)
    with pytest.raises(pulsar.ChecksumError):
        producer.send(b"x" * 2000)
    producer.send(b"small")
    assert earliest(official, topic).receive(SOON_MS).data() == b"small"


def test_a_pattern_finds_topics_and_partitions(
    official: pulsar.Client, wire_broker: Any, topic: str
) -> None:
    name = TopicName.parse(f"{topic}-p")
    wire_broker.call(lambda running: running.topics.create_partitioned(name, 2))
    names = [f"{topic}-a", f"{topic}-b", f"{topic}-p", f"x-{topic.rsplit('/', 1)[1]}"]
    producers = [official.create_producer(name) for name in names]
    consumer = earliest(official, re.compile(f"{re.escape(topic)}-.*"))
    for producer in producers:
        producer.send(producer.topic().encode())
    received = {consumer.receive(SOON_MS).data().decode() for _ in range(3)}
    assert {name.split("-partition-")[0] for name in received} == set(names[:3])
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NOTHING_MS)


def test_clients_come_back_after_an_unload(
    official: pulsar.Client, wire_broker: Any, topic: str
) -> None:
    consumer = earliest(official, topic)
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    producer = official.create_producer(topic, "p", batching_enabled=False)
    for number in range(5):
        producer.send(b"%d" % number)
        unload(wire_broker, topic)
    producer.send(b"5")
    seen = set()
    while len(seen) < 6:
        message = consumer.receive(SOON_MS)
        seen.add(message.data())
        consumer.acknowledge(message)
    assert [reader.read_next(SOON_MS).data() for _ in range(6)] == [b"%d" % n for n in range(6)]


def test_an_exclusive_producer_keeps_its_place_over_an_unload(
    official: pulsar.Client, wire_broker: Any, topic: str
) -> None:
    exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
    producer = official.create_producer(topic, **exclusive)
    unload(wire_broker, topic)
    producer.send(b"still mine")
    with pytest.raises(pulsar.ProducerFenced):
        official.create_producer(topic, **exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        official.create_producer(topic)


def test_who_fences_takes_the_topic_over(
    official: pulsar.Client, wire_broker: Any, topic: str
) -> None:
    owner = official.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    owner.send(b"first")
    other = client_of(wire_broker.service_url)
    fencing = other.create_producer(
        topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing
    )
    fencing.send(b"second")
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        owner.send(b"third")
    consumer = earliest(other, topic)
    assert [consumer.receive(SOON_MS).data() for _ in range(2)] == [b"first", b"second"]
    other.close()


def test_a_name_in_use_is_busy_for_the_official_client(official: pulsar.Client, topic: str) -> None:
    official.create_producer(topic, "p")
    with pytest.raises(pulsar.ProducerBusy):
        official.create_producer(topic, "p")


def test_a_terminated_topic_ends_its_producers(
    official: pulsar.Client, wire_broker: Any, topic: str
) -> None:
    producer = official.create_producer(topic)
    producer.send(b"last")

    async def terminate(running: Any) -> None:
        await (await running.topics.get(topic)).terminate()

    wire_broker.call(terminate)
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"later")
    with pytest.raises(pulsar.TopicTerminated):
        official.create_producer(topic)
    assert earliest(official, topic).receive(SOON_MS).data() == b"last"


def test_a_topic_deleted_under_its_clients_begins_anew(
    official: pulsar.Client, wire_broker: Any, topic: str
) -> None:
    consumer = earliest(official, topic)
    producer = official.create_producer(topic)
    producer.send(b"old")
    consumer.acknowledge(consumer.receive(SOON_MS))
    name = TopicName.parse(topic)
    wire_broker.call(lambda running: running.topics.delete(name, force=True))
    producer.send(b"new")
    assert earliest(official, topic, "other").receive(SOON_MS).data() == b"new"


def test_a_seek_by_id_goes_on_behind_it_and_by_time_with_it(
    official: pulsar.Client, topic: str
) -> None:
    consumer = earliest(official, topic)
    producer = official.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    received = [consumer.receive(SOON_MS) for _ in range(4)]
    consumer.seek(ids[1])
    assert consumer.receive(SOON_MS).data() == b"2"
    consumer.seek(received[1].publish_timestamp())
    assert consumer.receive(SOON_MS).data() <= b"1"
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(SOON_MS).data() == b"0"
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"4")
    assert consumer.receive(SOON_MS).data() == b"4"


def test_a_reader_starts_at_an_index_of_a_batch(official: pulsar.Client, topic: str) -> None:
    producer = official.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=1000
    )
    ids: list[Any] = []
    for number in range(10):
        producer.send_async(b"%d" % number, lambda _, message_id: ids.append(message_id))
    producer.flush()
    assert {i.entry_id() for i in ids} == {0}, "one batch"
    for inclusive, first in ((False, b"5"), (True, b"4")):
        reader = official.create_reader(topic, ids[4], start_message_id_inclusive=inclusive)
        assert reader.read_next(SOON_MS).data() == first
        reader.close()


def test_an_empty_topic_has_nothing_available(official: pulsar.Client, topic: str) -> None:
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    official.create_producer(topic).send(b"x")
    assert reader.has_message_available()
    reader.read_next(SOON_MS)
    assert not reader.has_message_available()


def test_schemas_are_kept_and_found_by_the_official_client(
    official: pulsar.Client, topic: str
) -> None:
    from pulsar.schema import Integer, JsonSchema, Record, String

    class Order(Record):
        name = String()
        count = Integer()

    consumer = earliest(official, topic, schema=JsonSchema(Order))
    producer = official.create_producer(topic, schema=JsonSchema(Order))
    producer.send(Order(name="n", count=3))
    assert consumer.receive(SOON_MS).value().count == 3
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic, schema=pulsar.schema.StringSchema())


def test_unsubscribing_forgets(official: pulsar.Client, topic: str) -> None:
    consumer = earliest(official, topic)
    producer = official.create_producer(topic)
    producer.send(b"x")
    consumer.acknowledge(consumer.receive(SOON_MS))
    consumer.unsubscribe()
    assert earliest(official, topic).receive(SOON_MS).data() == b"x"


def test_unloads_under_load_lose_and_double_nothing(topic: str) -> None:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:
        client = client_of(broker.service_url)
        producer = client.create_producer(
            topic, "p", batching_enabled=True, batching_max_messages=7, block_if_queue_full=True
        )
        # Before its first receipt this client restarts its sequence ids when it reconnects. Its own
        # messages then count as duplicates (apache/pulsar#2047 reports this of Java's).
        producer.send(b"first")
        for number in range(3000):
            producer.send_async(b"%d" % number, lambda *_: None)
            if number % 500 == 250:
                unload(broker, topic)
        producer.flush()
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        received = [reader.read_next(SOON_MS).data() for _ in range(3001)]
        assert received == [b"first", *(b"%d" % number for number in range(3000))]
        assert not reader.has_message_available()
        client.close()
