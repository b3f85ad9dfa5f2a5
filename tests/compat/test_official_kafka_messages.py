"""Messages of Kafka's Java clients of 3.9 and 4.3, beside those of Pulsar's."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from official_java import java_gateway
from official_kafka import jars_of_3, newest_jars, properties

import pybroker.testing
from pybroker.client import Client, MessageId
from pybroker.testing import RunningBroker

pytestmark = pytest.mark.java

SERIALIZER = "org.apache.kafka.common.serialization.StringSerializer"
DESERIALIZER = "org.apache.kafka.common.serialization.StringDeserializer"
WAIT_S, WAIT_MS = 30, 30_000
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(kafka=True) as broker:
        yield broker


@pytest.fixture(scope="module", params=[jars_of_3, newest_jars], ids=["3.9", "4.3"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Any]:
    jars: Callable[[], list[Path]] = request.param
    with java_gateway(jars()) as gateway:
        yield gateway


@pytest.fixture
def topic() -> str:
    return f"java-{next(NUMBERS)}"


class Java:
    def __init__(self, gateway: Any, bootstrap: str) -> None:
        self._gateway, self._bootstrap = gateway, bootstrap
        self.api = gateway.jvm.org.apache.kafka

    def producer(self, **settings: str) -> Any:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        given = {
            "bootstrap.servers": self._bootstrap,
            "key.serializer": SERIALIZER,
            "value.serializer": SERIALIZER,
            "linger.ms": "20",
        }
        found = properties(self._gateway, given | named)
        return self.api.clients.producer.KafkaProducer(found)

    def send(self, producer: Any, topic: str, key: str | None, value: str | None) -> Any:
        return producer.send(self.api.clients.producer.ProducerRecord(topic, key, value))

    def read(self, topic: str, count: int, isolation: str = "read_committed") -> list[Any]:
        """The first records, and a check that the position comes to the end of the log."""
        given = {
            "bootstrap.servers": self._bootstrap,
            "key.deserializer": DESERIALIZER,
            "value.deserializer": DESERIALIZER,
            "isolation.level": isolation,
            "enable.auto.commit": "false",
        }
        consumer = self.api.clients.consumer.KafkaConsumer(properties(self._gateway, given))
        partition = self.api.common.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seekToBeginning([partition])
        duration = self._gateway.jvm.java.time.Duration.ofMillis(500)
        end = consumer.endOffsets([partition])[partition]
        found: list[Any] = []
        for _ in range(2 * WAIT_S):
            if consumer.position(partition) >= end:
                break
            found += list(consumer.poll(duration).iterator())
        assert consumer.position(partition) == end
        consumer.close()
        assert len(found) == count
        return found


@pytest.fixture
def java(gateway: Any, broker: RunningBroker) -> Java:
    return Java(gateway, broker.kafka_bootstrap)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.kafka_client(
    "Java 3.9",
    "messages, also of Pulsar's clients",
    "gzip, snappy, lz4, zstd",
    "idempotent producer",
)
@pytest.mark.kafka_client(
    "Java 4.3",
    "messages, also of Pulsar's clients",
    "gzip, snappy, lz4, zstd",
    "idempotent producer",
)
def test_records_are_read_by_both(
    java: Java, broker: RunningBroker, topic: str, compression: str
) -> None:
    producer = java.producer(compression_type=compression)
    sent = [java.send(producer, topic, f"k{at}", "value " * at) for at in range(30)]
    assert [each.get().offset() for each in sent] == list(range(30))
    java.send(producer, topic, "k0", None).get()
    producer.close()
    found = java.read(topic, 31)
    assert [each.value() for each in found] == [*("value " * at for at in range(30)), None]
    with Client(broker.service_url) as client:
        reader = client.create_reader(topic, MessageId.earliest)
        messages = [reader.read_next(WAIT_MS) for _ in range(31)]
        assert [each.data().decode() for each in messages[:30]] == ["value " * n for n in range(30)]
        assert messages[29].partition_key() == "k29"


def test_messages_of_a_pulsar_client_are_read(
    java: Java, broker: RunningBroker, topic: str
) -> None:
    with Client(broker.service_url) as client:
        producer = client.create_producer(topic)
        producer.send(b"plain", partition_key="k", properties={"a": "b"})
        with client.new_transaction() as transaction:
            producer.send(b"committed", txn=transaction)
        aborted = client.new_transaction()
        producer.send(b"aborted", txn=aborted)
        aborted.abort()
    first, second = java.read(topic, 2)
    assert (first.key(), first.value(), second.value()) == ("k", "plain", "committed")
    (header,) = list(first.headers().iterator())
    assert (header.key(), bytes(header.value())) == ("a", b"b")


@pytest.mark.kafka_client("Java 3.9", "transactions")
@pytest.mark.kafka_client("Java 4.3", "transactions")
def test_a_transactional_producer_commits_and_aborts(
    java: Java, broker: RunningBroker, topic: str
) -> None:
    producer = java.producer(transactional_id=f"id-of-{topic}")
    producer.initTransactions()
    for turn in range(4):
        producer.beginTransaction()
        for at in range(3):
            java.send(producer, topic, None, f"{turn}-{at}")
        producer.flush()
        if turn % 2:
            producer.abortTransaction()
        else:
            producer.commitTransaction()
    producer.close()
    expected = [f"{turn}-{at}" for turn in (0, 2) for at in range(3)]
    assert [each.value() for each in java.read(topic, 6)] == expected
    assert [each.value() for each in java.read(topic, 6, "read_uncommitted")] == expected
    with Client(broker.service_url) as client:
        reader = client.create_reader(topic, MessageId.earliest)
        assert [reader.read_next(WAIT_MS).data().decode() for _ in range(6)] == expected
