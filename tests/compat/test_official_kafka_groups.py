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
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
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

    def share_consumer(self, group: str, **more: str) -> Any:
        """Of the topic with the group's name."""
        given = {"group_id": group, "share_acknowledgement_mode": "explicit"}
        settings = self._settings(**{**given, **more})
        made = self.api.consumer.KafkaShareConsumer(settings)
        made.subscribe([group])
        return made

    def decide(self, consumer: Any, count: int, decision: Callable[[str, int], str]) -> list[str]:
        """The values of the first `count` deliveries, each of which was decided, with commits."""
        duration = self._gateway.jvm.java.time.Duration
        kinds = self._gateway.jvm.java.lang.Class.forName(
            "org.apache.kafka.clients.consumer.AcknowledgeType"
        )
        found: list[str] = []
        for _ in range(WAIT_S * 5):
            records = consumer.poll(duration.ofMillis(200)).iterator()
            while records.hasNext():
                record = records.next()
                found.append(record.value())
                said = decision(record.value(), record.deliveryCount().get())
                kind = self._gateway.jvm.java.lang.Enum.valueOf(kinds, said)
                consumer.acknowledge(record, kind)
            consumer.commitSync()
            if len(found) >= count:
                break
        return found

    def deliveries(self, consumer: Any, count: int) -> dict[str, int]:
        """The numbers of the first `count` deliveries, none of which was decided but the last."""
        duration = self._gateway.jvm.java.time.Duration
        found: dict[str, int] = {}
        for _ in range(WAIT_S * 5):
            records = consumer.poll(duration.ofMillis(200)).iterator()
            while records.hasNext():
                record = records.next()
                found[record.value()] = record.deliveryCount().get()
                if len(found) == count:
                    return found
                consumer.acknowledge(record)
        return found

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


@pytest.fixture(scope="module")
def share_gateway() -> Iterator[Any]:
    """Share consumers came with Kafka 4."""
    with java_gateway(newest_jars()) as gateway:
        yield gateway


@pytest.mark.kafka_client("Java 4.3", "share groups")
def test_share_consumers_accept_release_and_reject(
    share_gateway: Any, broker: RunningBroker
) -> None:
    """What one of them did not decide, because it was closed, goes to another one."""
    topic = "shared-by-java"
    clients, admin = (
        Clients(share_gateway, broker),
        OfficialAdmin(share_gateway, broker.kafka_bootstrap),
    )
    admin.create(topic, 2)
    admin.set_group_config(topic, "share.auto.offset.reset", "earliest")
    producer = clients.producer(topic)
    for commits in (True, False):
        producer.beginTransaction()
        for each in range(10):
            clients.send(producer, topic, str(each) if commits else "aborted")
        producer.commitTransaction() if commits else producer.abortTransaction()
    producer.close()
    first = clients.share_consumer(topic)
    decisions = {"3": "RELEASE", "4": "REJECT"}
    seen = clients.decide(first, 11, lambda value, count: decisions.pop(value, "ACCEPT"))
    assert sorted(seen) == sorted([*map(str, range(10)), "3"])
    first.close()
    second = clients.share_consumer(topic)
    producer = clients.producer(topic)
    producer.beginTransaction()
    clients.send(producer, topic, "later")
    producer.commitTransaction()
    producer.close()
    assert clients.decide(second, 1, lambda value, count: "ACCEPT") == ["later"]
    server = ("--bootstrap-server", broker.kafka_bootstrap)
    assert topic in shell_tool(SHARE_GROUPS, *server, "--list")
    assert topic in shell_tool(SHARE_GROUPS, *server, "--describe", "--group", topic)
    assert "Stable" in shell_tool(SHARE_GROUPS, *server, "--describe", "--state", "--group", topic)
    second.close()
    reset = ("--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    shell_tool(SHARE_GROUPS, *server, "--group", topic, *reset)
    third = clients.share_consumer(topic)
    assert len(clients.decide(third, 11, lambda value, count: "ACCEPT")) == 11
    third.close()
    shell_tool(SHARE_GROUPS, *server, "--delete", "--group", topic)
    assert topic not in shell_tool(SHARE_GROUPS, *server, "--list")
    admin.close()


def test_a_share_consumer_that_wants_single_records_and_dies_takes_no_others_with_it(
    share_gateway: Any, broker: RunningBroker
) -> None:
    """One batch has them all. What was never handed out is delivered for the first time."""
    topic, deliveries = "single-records", 5
    clients, admin = (
        Clients(share_gateway, broker),
        OfficialAdmin(share_gateway, broker.kafka_bootstrap),
    )
    admin.create(topic, 1)
    admin.set_group_config(topic, "share.auto.offset.reset", "earliest")
    producer = clients.producer(topic)
    producer.beginTransaction()
    for each in range(4):
        clients.send(producer, topic, str(each))
    producer.commitTransaction()
    producer.close()
    single = {"share_acquire_mode": "record_limit", "max_poll_records": "1"}
    for count in range(1, deliveries + 1):
        dying = clients.share_consumer(topic, **single)
        assert clients.deliveries(dying, 1) == {"0": count}
        dying.close()
    last = clients.share_consumer(topic, **single)
    assert clients.deliveries(last, 3) == {"1": 1, "2": 1, "3": 1}
    last.close()
    admin.close()
