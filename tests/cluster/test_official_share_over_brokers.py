"""Kafka's own share consumer on two brokers, one of which is killed."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

sys.path.append(str(Path(__file__).parents[1] / "compat"))
sys.path.append(str(Path(__file__).parents[1] / "bookkeeper"))

from broker_processes import BrokerProcess
from official_java import java_gateway
from official_kafka import OfficialAdmin, newest_jars, properties, shell_tool
from servers import Cluster

pytestmark = pytest.mark.java
TOPIC: Final = "shared"
PARTITIONS: Final = 8
RECORDS: Final = 400
SHARE_GROUPS: Final = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
STRING: Final = "org.apache.kafka.common.serialization.String"
POLLS: Final = 600  # of 200 ms
POLLS_FOR_LOCKS: Final = 200  # longer than a lock


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with Cluster() as storage:
        address, kafka = storage.zookeeper_address, {"kafkaServicePort": 0}
        started = [BrokerProcess(tmp_path, name, address, kafka) for name in "ab"]
        yield started
        for each in started:
            each.kill()


class ShareConsumer:
    """Accepts what it polls, except that it releases the first delivery of every tenth value."""

    def __init__(self, gateway: Any, settings: Any) -> None:
        clients = gateway.jvm.org.apache.kafka.clients.consumer
        kinds = gateway.jvm.java.lang.Class.forName(
            "org.apache.kafka.clients.consumer.AcknowledgeType"
        )
        self._kind = lambda name: gateway.jvm.java.lang.Enum.valueOf(kinds, name)
        self._briefly = gateway.jvm.java.time.Duration.ofMillis(200)
        self._consumer = clients.KafkaShareConsumer(settings)
        self._consumer.subscribe([TOPIC])
        self.accepted: set[str] = set()  # and told so
        self.released: set[str] = set()
        self.came_again: list[str] = []  # after it was accepted

    def poll(self) -> None:
        said: dict[str, list[tuple[str, bool]]] = {}
        records = self._consumer.poll(self._briefly).iterator()
        while records.hasNext():
            record = records.next()
            value = record.value()
            if value in self.accepted:
                self.came_again.append(value)
            accepts = int(value) % 10 != 0 or record.deliveryCount().get() > 1
            self._consumer.acknowledge(record, self._kind("ACCEPT" if accepts else "RELEASE"))
            said.setdefault(str(record.partition()), []).append((value, accepts))
        answers = self._consumer.commitSync().entrySet().iterator()
        while answers.hasNext():
            answer = answers.next()
            if not answer.getValue().isPresent():
                self._said(said.get(str(answer.getKey().partition()), []))

    def _said(self, answered: list[tuple[str, bool]]) -> None:
        for value, accepts in answered:
            (self.accepted if accepts else self.released).add(value)

    def close(self) -> None:
        self._consumer.close()


def described(bootstrap: str) -> dict[int, str]:
    """By partition: the start offset, as kafka-share-groups prints it."""
    server = ("--bootstrap-server", bootstrap, "--describe", "--offsets", "--group", TOPIC)
    lines = shell_tool(SHARE_GROUPS, *server).splitlines()
    found = [re.match(rf"{TOPIC}\s+{TOPIC}\s+(\d+)\s+(\S+)", each) for each in lines]
    return {int(each[1]): each[2] for each in found if each}


def test_a_share_consumer_loses_nothing_while_a_broker_dies(brokers: list[BrokerProcess]) -> None:
    bootstrap = ",".join(each.kafka_bootstrap for each in brokers)
    with java_gateway(newest_jars()) as gateway:
        admin = OfficialAdmin(gateway, bootstrap)
        admin.create(TOPIC, PARTITIONS)
        admin.set_group_config(TOPIC, "share.auto.offset.reset", "earliest")
        settings = {"bootstrap.servers": bootstrap, "group.id": TOPIC}
        settings |= {f"{part}.serializer": f"{STRING}Serializer" for part in ("key", "value")}
        settings |= {f"{part}.deserializer": f"{STRING}Deserializer" for part in ("key", "value")}
        settings |= {"share.acknowledgement.mode": "explicit", "max.poll.records": "10"}
        producing = gateway.jvm.org.apache.kafka.clients.producer
        producer = producing.KafkaProducer(properties(gateway, settings))
        for number in range(RECORDS):
            producer.send(producing.ProducerRecord(TOPIC, str(number), str(number)))
        producer.close()
        consumer = ShareConsumer(gateway, properties(gateway, settings))
        wanted = {str(number) for number in range(RECORDS)}
        for _ in range(POLLS):
            consumer.poll()
            if len(consumer.accepted) > RECORDS // 3:
                break
        assert sorted(described(bootstrap)) == list(range(PARTITIONS)), "of both brokers"
        brokers[0].kill()
        for _ in range(POLLS):
            if wanted <= consumer.accepted:
                break
            consumer.poll()
        for _ in range(POLLS_FOR_LOCKS):
            consumer.poll()
        assert (consumer.accepted, consumer.came_again) == (wanted, [])
        assert consumer.released
        consumer.close()
        left = described(brokers[1].kafka_bootstrap)
        assert sorted(left) == list(range(PARTITIONS))
        admin.close()
