"""Kafka's Java clients of 3.9 and 4.3 in groups and transactions, and the shell tools for both."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from official_java import java_gateway
from official_kafka import OfficialAdmin, jars_of_3, newest_jars, properties, shell_tool

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = pytest.mark.java

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
STRING = "org.apache.kafka.common.serialization.String"
WAIT_S = 30


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
def topic(gateway: Any, broker: RunningBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new topic with two partitions."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)[:120]
    admin = OfficialAdmin(gateway, broker.kafka_bootstrap)
    admin.create(name, 2)
    yield name
    admin.close()


class Clients:
    def __init__(self, gateway: Any, broker: RunningBroker) -> None:
        self._gateway, self._broker = gateway, broker
        self.api = gateway.jvm.org.apache.kafka.clients
        self.common = gateway.jvm.org.apache.kafka.common

    def _settings(self, **more: str) -> Any:
        given = {
            "bootstrap.servers": self._broker.kafka_bootstrap,
            "key.deserializer": f"{STRING}Deserializer",
            "value.deserializer": f"{STRING}Deserializer",
            "key.serializer": f"{STRING}Serializer",
            "value.serializer": f"{STRING}Serializer",
        }
        named = {key.replace("_", "."): value for key, value in more.items()}
        return properties(self._gateway, given | named)

    def producer(self, name: str) -> Any:
        made = self.api.producer.KafkaProducer(self._settings(transactional_id=name))
        made.initTransactions()
        return made

    def consumer(self, group: str, topic: str, **more: str) -> Any:
        given = {
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": "false",
            "isolation_level": "read_committed",
        }
        made = self.api.consumer.KafkaConsumer(self._settings(**{**given, **more}))
        made.subscribe([topic])
        return made

    def send(self, producer: Any, topic: str, value: str) -> None:
        producer.send(self.api.producer.ProducerRecord(topic, value))

    def read(self, consumer: Any, count: int) -> list[str]:
        duration = self._gateway.jvm.java.time.Duration
        found: list[str] = []
        for _ in range(WAIT_S * 5):
            records = consumer.poll(duration.ofMillis(200)).iterator()
            while records.hasNext():
                found.append(records.next().value())
            if len(found) >= count:
                break
        return sorted(found)

    def positions(self, consumer: Any) -> Any:
        found = self._gateway.jvm.java.util.HashMap()
        for place in consumer.assignment().toArray():
            offset = self.api.consumer.OffsetAndMetadata(consumer.position(place))
            found.put(place, offset)
        return found

    def committed(self, consumer: Any) -> int:
        """The sum over the partitions."""
        found = consumer.committed(consumer.assignment())
        return sum(each.offset() for each in found.values() if each is not None)


@pytest.fixture
def clients(gateway: Any, broker: RunningBroker) -> Clients:
    return Clients(gateway, broker)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.kafka_client(
    "Java 3.9", "classic groups", "groups of KIP-848", "offsets in transactions"
)
@pytest.mark.kafka_client(
    "Java 4.3", "classic groups", "groups of KIP-848", "offsets in transactions"
)
def test_a_pipeline_commits_what_it_read_with_what_it_wrote(
    clients: Clients, topic: str, protocol: str
) -> None:
    group, output = f"g-{topic}", f"{topic}-out"
    producer = clients.producer(topic)
    producer.beginTransaction()
    for each in range(4):
        clients.send(producer, topic, str(each))
    producer.commitTransaction()
    consumer = clients.consumer(group, topic, group_protocol=protocol)
    assert clients.read(consumer, 4) == ["0", "1", "2", "3"]
    for commits in (False, True):
        producer.beginTransaction()
        clients.send(producer, output, f"committed {commits}")
        producer.sendOffsetsToTransaction(clients.positions(consumer), consumer.groupMetadata())
        producer.commitTransaction() if commits else producer.abortTransaction()
        assert clients.committed(consumer) == (4 if commits else 0)
    consumer.close()
    producer.close()
    checking = clients.consumer(f"check-{topic}", output)
    assert clients.read(checking, 1) == ["committed True"]
    checking.close()


@pytest.mark.kafka_client("Java 3.9", "zombies are fenced")
@pytest.mark.kafka_client("Java 4.3", "zombies are fenced")
def test_a_zombie_is_fenced(clients: Clients, topic: str) -> None:
    zombie = clients.producer(topic)
    zombie.beginTransaction()
    clients.send(zombie, topic, "from the zombie")
    zombie.flush()
    newer = clients.producer(topic)
    with pytest.raises(Exception, match=r"ProducerFenced|InvalidProducerEpoch"):
        zombie.commitTransaction()
    newer.beginTransaction()
    clients.send(newer, topic, "from the newer")
    newer.commitTransaction()
    consumer = clients.consumer(topic, topic)
    assert clients.read(consumer, 1) == ["from the newer"]
    for each in (zombie, newer, consumer):
        each.close()


def test_the_tools_show_groups_and_reset_their_offsets(
    clients: Clients, broker: RunningBroker, topic: str
) -> None:
    server = ("--bootstrap-server", broker.kafka_bootstrap)
    group = f"g-{topic}"
    producer = clients.producer(topic)
    producer.beginTransaction()
    for each in range(3):
        clients.send(producer, topic, str(each))
    producer.commitTransaction()
    producer.close()
    consumer = clients.consumer(group, topic)
    assert clients.read(consumer, 3) == ["0", "1", "2"]
    consumer.commitSync()
    assert group in shell_tool(GROUPS, *server, "--list")
    assert topic in shell_tool(GROUPS, *server, "--describe", "--group", group)
    assert "Stable" in shell_tool(GROUPS, *server, "--describe", "--state", "--group", group)
    consumer.close()
    reset = ("--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    shell_tool(GROUPS, *server, "--group", group, *reset)
    again = clients.consumer(group, topic)
    assert clients.read(again, 3) == ["0", "1", "2"]
    again.close()
    shell_tool(GROUPS, *server, "--delete", "--group", group)
    assert group not in shell_tool(GROUPS, *server, "--list")


def test_the_tools_show_transactions(clients: Clients, broker: RunningBroker, topic: str) -> None:
    server = ("--bootstrap-server", broker.kafka_bootstrap)
    producer = clients.producer(topic)
    producer.beginTransaction()
    clients.send(producer, topic, "x")
    producer.flush()
    assert topic in shell_tool(TRANSACTIONS, *server, "list")
    shown = shell_tool(TRANSACTIONS, *server, "describe", "--transactional-id", topic)
    assert "Ongoing" in shown
    producer.abortTransaction()
    shown = shell_tool(TRANSACTIONS, *server, "describe", "--transactional-id", topic)
    assert "CompleteAbort" in shown
    producer.close()
