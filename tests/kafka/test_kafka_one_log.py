"""One log for both protocols: what one client writes, every other reads."""

import asyncio
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from compacting import compact
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonsPartition

from pybroker.base.names import TopicName
from pybroker.broker.client_topics import used_by_kafka
from pybroker.client import Client, MessageId
from pybroker.testing import RunningBroker, broker
from pybroker.wire.single_messages import split_batch

WAIT_S = 30
WAIT_MS = WAIT_S * 1000
UNUSED_GROUP = {"group.id": "unused", "enable.auto.commit": False}
LONG_AGO = 1_600_000_000_000


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, http=True) as started:
        yield started


@pytest.fixture(scope="module")
def client(running: RunningBroker) -> Iterator[Client]:
    with Client(running.service_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def official(running: RunningBroker) -> Iterator[pulsar.Client]:
    connected = pulsar.Client(running.service_url)
    yield connected
    connected.close()


def librdkafka(running: RunningBroker, **settings: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": running.kafka_bootstrap,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def send(running: RunningBroker, topic: str, *messages: dict[str, Any], **settings: Any) -> None:
    producer, failed = librdkafka(running, **settings), []
    for message in messages:
        producer.produce(topic, on_delivery=lambda error, _: failed.append(error), **message)
    assert producer.flush(WAIT_S) == 0
    assert failed == [None] * len(messages)


def received(running: RunningBroker, topic: str, count: int, **settings: str) -> list[Message]:
    """From the first message on, through librdkafka."""
    consumer = Consumer({"bootstrap.servers": running.kafka_bootstrap, **UNUSED_GROUP, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        if (message := consumer.poll(1.0)) is not None:
            assert message.error() is None
            found.append(message)
    consumer.close()
    return found


def read(client: Client, topic: str, count: int) -> list[Any]:
    reader = client.create_reader(topic, MessageId.earliest)
    found = [reader.read_next(WAIT_MS) for _ in range(count)]
    reader.close()
    return found


# -- Kafka's messages for Pulsar's clients


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.kafka_client("confluent-kafka", "gzip, snappy, lz4, zstd")
def test_records_of_librdkafka_are_messages(
    running: RunningBroker, client: Client, official: pulsar.Client, compression: str
) -> None:
    topic = f"from-librdkafka-{compression}"
    headers = [("h", b"one"), ("h", b"\xff"), ("n", None)]
    send(
        running,
        topic,
        {"key": b"k", "value": b"with all" * 50, "headers": headers, "timestamp": LONG_AGO},
        {"key": b"\xff", "value": None},
        {"value": b""},
        compression_type=compression,
        linger_ms=50,
    )
    first, tombstone, empty = read(client, topic, 3)
    assert (first.partition_key(), first.data()) == ("k", b"with all" * 50)
    assert first.properties() == {"h": "one", "h;base64": "/w==", "n;null": ""}
    assert first.event_timestamp() == LONG_AGO
    assert (tombstone.data(), empty.data()) == (b"", b"")
    theirs = official.create_reader(topic, pulsar.MessageId.earliest)
    found = [theirs.read_next(WAIT_MS) for _ in range(3)]
    assert [each.data() for each in found] == [b"with all" * 50, b"", b""]
    assert [each.partition_key() for each in found] == ["k", "/w==", ""]
    assert found[0].properties() == first.properties()
    theirs.close()


def test_a_pulsar_consumer_acknowledges_records_one_by_one(
    running: RunningBroker, official: pulsar.Client
) -> None:
    topic = "acknowledged"
    consumer = official.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    send(running, topic, *({"value": b"%d" % at} for at in range(20)), linger_ms=100)
    for at in range(20):
        message = consumer.receive(WAIT_MS)
        assert message.data() == b"%d" % at
        consumer.acknowledge(message)
    running.wait_until(lambda: running.backlog(f"{topic}-partition-0", "s") == 0)
    consumer.close()


def test_records_of_a_key_go_to_one_consumer_of_key_shared(
    running: RunningBroker, official: pulsar.Client
) -> None:
    kind, topic = pulsar.ConsumerType.KeyShared, "by-key"
    consumers = [official.subscribe(topic, "s", consumer_type=kind) for _ in range(2)]
    sent = [{"key": b"k%d" % (at % 8), "value": b"%d" % at} for at in range(40)]
    send(running, topic, *sent, batch_num_messages=1)
    keys: list[set[str]] = [set(), set()]
    found = 0
    deadline = time.monotonic() + WAIT_S
    while found < len(sent) and time.monotonic() < deadline:
        for consumer, its_keys in zip(consumers, keys, strict=True):
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            its_keys.add(message.partition_key())
            consumer.acknowledge(message)
            found += 1
    assert found == len(sent) and not keys[0] & keys[1]
    assert keys[0] | keys[1] == {f"k{at}" for at in range(8)}
    for consumer in consumers:
        consumer.close()


@pytest.mark.kafka_client("aiokafka", "idempotent producer")
def test_records_of_kafka_python_and_aiokafka_are_messages(
    running: RunningBroker, client: Client
) -> None:
    producer = KafkaProducer(bootstrap_servers=running.kafka_bootstrap, acks="all")
    sent = producer.send("from-python", b"one", key=b"k", headers=[("h", b"x")])
    assert sent.get(WAIT_S).offset == 0
    producer.close()

    async def write() -> int:
        theirs = AIOKafkaProducer(
            bootstrap_servers=running.kafka_bootstrap, enable_idempotence=True
        )
        await theirs.start()
        try:
            return int((await theirs.send_and_wait("from-python", b"two", key=b"l")).offset)
        finally:
            await theirs.stop()

    assert asyncio.run(write()) == 1
    one, two = read(client, "from-python", 2)
    assert (one.data(), one.partition_key(), one.properties()) == (b"one", "k", {"h": "x"})
    assert (two.data(), two.partition_key()) == (b"two", "l")


def test_without_acknowledgements_records_are_stored(
    running: RunningBroker, client: Client
) -> None:
    send(running, "unconfirmed", {"value": b"sent"}, acks=0)
    assert read(client, "unconfirmed", 1)[0].data() == b"sent"


def test_compaction_sees_the_keys_of_records(running: RunningBroker, client: Client) -> None:
    topic = "compacted"
    values = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", None), ("c", b"4")]
    send(running, topic, *({"key": k, "value": v} for k, v in values), linger_ms=100)
    compact(running, f"{topic}-partition-0")
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    found = [reader.read_next(WAIT_MS) for _ in range(3)]
    assert [(each.partition_key(), each.data()) for each in found] == [
        ("a", b"3"),
        ("b", b""),
        ("c", b"4"),
    ]
    reader.close()


# -- Pulsar's messages for Kafka's clients


@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_messages_of_the_official_client_are_records(
    running: RunningBroker, official: pulsar.Client, kind: str
) -> None:
    topic = f"from-pulsar-{kind.lower()}"
    producer = official.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, kind),
        batching_enabled=True,
        batching_max_publish_delay_ms=50,
    )
    for at in range(10):
        producer.send_async(
            b"%d" % at * 30,
            lambda result, _: None,
            partition_key=f"k{at}",
            properties={"at": str(at)},
            event_timestamp=LONG_AGO + at,
        )
    producer.flush()
    producer.close()
    found = received(running, topic, 10)
    assert [each.offset() for each in found] == list(range(10))
    assert [each.value() for each in found] == [b"%d" % at * 30 for at in range(10)]
    assert [each.key() for each in found] == [b"k%d" % at for at in range(10)]
    assert [each.headers() for each in found] == [[("at", b"%d" % at)] for at in range(10)]
    assert [each.timestamp()[1] for each in found] == [LONG_AGO + at for at in range(10)]


def test_a_chunked_message_is_one_record(running: RunningBroker, official: pulsar.Client) -> None:
    producer = official.create_producer("chunks", chunking_enabled=True, batching_enabled=False)
    large = bytes(range(256)) * 4096 * 12  # 12 MiB: three chunks
    producer.send(b"before")
    producer.send(large, partition_key="large")
    producer.send(b"after")
    producer.close()
    found = received(running, "chunks", 3, **{"fetch.message.max.bytes": "20000000"})
    assert [each.value() for each in found] == [b"before", large, b"after"]
    assert [each.offset() for each in found] == [0, 3, 4]


@pytest.mark.kafka_client("confluent-kafka", "messages, also of Pulsar's clients")
@pytest.mark.kafka_client("kafka-python", "messages, also of Pulsar's clients")
@pytest.mark.kafka_client("aiokafka", "messages, also of Pulsar's clients")
def test_every_kafka_client_reads_both_kinds(running: RunningBroker, client: Client) -> None:
    topic = "both-kinds"
    producer = client.create_producer(topic)
    expected = []
    for at in range(3):
        producer.send(b"pulsar %d" % at)
        send(running, topic, {"value": b"kafka %d" % at})
        expected += [b"pulsar %d" % at, b"kafka %d" % at]
    assert [each.value() for each in received(running, topic, 6)] == expected
    partition = PythonsPartition(topic, 0)
    theirs = KafkaConsumer(
        bootstrap_servers=running.kafka_bootstrap, consumer_timeout_ms=WAIT_MS, group_id=None
    )
    theirs.assign([partition])
    theirs.seek(partition, 0)
    assert [next(theirs).value for _ in range(6)] == expected
    assert theirs.end_offsets([partition]) == {partition: 6}
    theirs.close()

    async def read_all() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=running.kafka_bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            return [(await consumer.getone()).value for _ in range(6)]
        finally:
            await consumer.stop()

    assert asyncio.run(asyncio.wait_for(read_all(), WAIT_S)) == expected


def test_a_read_committed_consumer_comes_to_the_end_behind_an_aborted_transaction(
    running: RunningBroker, client: Client
) -> None:
    topic = "transactions"
    producer = client.create_producer(topic)
    with client.new_transaction() as transaction:
        producer.send(b"committed", txn=transaction)
    aborted = client.new_transaction()
    producer.send(b"aborted", txn=aborted)
    aborted.abort()
    consumer = Consumer(
        {
            "bootstrap.servers": running.kafka_bootstrap,
            **UNUSED_GROUP,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [consumer.poll(WAIT_S) for _ in range(2)]
    assert found[0].value() == b"committed"
    assert found[1].error().code() == -191  # the end of the partition
    assert found[1].offset() == 2
    open_one = client.new_transaction()
    producer.send(b"open", txn=open_one)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0))[1] == 2
    open_one.commit()
    assert consumer.poll(WAIT_S).value() == b"open"
    consumer.close()


# -- topics that Pulsar's clients already use


def test_consumers_that_are_there_when_kafka_comes_read_on(
    running: RunningBroker, official: pulsar.Client, client: Client
) -> None:
    """From then on entries carry metadata of the broker, which these clients must not see."""
    topic = "in-use"
    consumer = official.subscribe(topic, "s")
    producer = official.create_producer(topic)
    producer.send(b"before")
    send(running, topic, {"value": b"kafka"})
    producer.send(b"after")
    values = []
    for _ in range(3):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        values.append(message.data())
    assert values == [b"before", b"kafka", b"after"]
    assert [each.data() for each in read(client, topic, 3)] == values
    consumer.close()
    producer.close()


def test_peeking_shows_records_as_messages(running: RunningBroker, official: pulsar.Client) -> None:
    send(running, "peeked", {"key": b"k", "value": b"seen", "headers": [("h", b"x")]})
    official.subscribe("peeked", "s", initial_position=pulsar.InitialPosition.Earliest).close()
    path = "/admin/v2/persistent/public/default/peeked-partition-0/subscription/s/position/1"
    with urllib.request.urlopen(running.admin_url + path, timeout=WAIT_S) as answer:
        body, headers = answer.read(), answer.headers
    assert headers["X-Pulsar-num-batch-message"] == "1"
    (single, value) = next(iter(split_batch(body, 1)))
    assert (single.partition_key, value) == ("k", b"seen")


def test_a_topic_of_kafka_keeps_its_messages_and_itself(running: RunningBroker) -> None:
    """Nobody subscribes to it: with Pulsar's defaults its messages would be deleted, then it."""
    send(running, "kept", {"value": b"stays"})

    async def look(found: Any) -> tuple[int, bool]:
        topic = await found.topics.get("kept-partition-0")
        return topic.retention_ms, used_by_kafka(topic)

    assert running.call(look) == (7 * 24 * 3600 * 1000, True)


def test_a_deleted_topic_leaves_nothing_of_its_producers() -> None:
    with broker(kafka=True) as started:
        send(started, "gone", {"value": b"x"}, enable_idempotence=True)
        started.restart()  # writes the snapshot
        key = "/kafka-producers/public/default/persistent/gone-partition-0"

        async def keys(found: Any) -> list[str]:
            return list(found.metadata.keys("/kafka-producers/"))

        async def delete(found: Any) -> None:
            await found.topics.delete(TopicName.parse("gone-partition-0"), force=True)

        assert started.call(keys) == [key]
        started.call(delete)
        assert started.call(keys) == []


@pytest.mark.kafka_client("confluent-kafka", "idempotent producer")
def test_an_idempotent_producer_loses_and_doubles_nothing_while_the_broker_crashes() -> None:
    count, outcomes = 3_000, list[Any]()
    with broker(kafka=True) as started:
        producer = librdkafka(started, enable_idempotence=True, linger_ms=1, batch_num_messages=20)
        for at in range(count):
            producer.produce(
                "crashes", b"%d" % at, on_delivery=lambda error, _: outcomes.append(error)
            )
            if at in (1_000, 2_000):
                while len(outcomes) < at - 500:
                    producer.poll(0.1)
                started.kill_and_restart()
        assert producer.flush(2 * WAIT_S) == 0
        assert outcomes == [None] * count
        found = [each.value() for each in received(started, "crashes", count)]
        assert found == [b"%d" % at for at in range(count)]
        with Client(started.service_url) as client:
            assert [each.data() for each in read(client, "crashes", count)] == found
