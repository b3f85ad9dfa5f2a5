"""Flink's Pulsar connector: jobs that copy exactly once, despite kills.

The topics are partitioned: this connector assigns some other topics to no reader at all
(docs/clients.md).
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from official_flink import FlinkCluster, flink_cluster

from pybroker.client import Client, Consumer, InitialPosition
from pybroker.testing.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.feature("transactions", "partitioned topics"),
]

SOON_MS: Final = 180_000
END: Final = b"end"
# A killed task's open transaction hides later messages for this long. With a shorter timeout a busy
# machine may take longer from a checkpoint to its commit, and Flink loses the transaction.
TRANSACTION_MS: Final = 60_000


@pytest.fixture(scope="module")
def flink() -> Iterator[FlinkCluster]:
    with flink_cluster() as cluster:
        yield cluster


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    # The Java client resends unanswered messages after a lost connection, in transactions too.
    settings = tmp_path / "broker.conf"
    settings.write_text("brokerDeduplicationEnabled=true\n")
    with BrokerProcess(tmp_path / "data", ["--config", str(settings)]) as broker:
        yield broker


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(broker.service_url) as client:
        yield client


def create(broker: BrokerProcess, topic: str, partitions: int) -> str:
    path = f"/admin/v2/{topic.replace('://', '/')}/partitions"
    assert httpx.put(broker.admin_url + path, json=partitions).status_code == 204
    return topic


@pytest.fixture
def source(broker: BrokerProcess) -> str:
    return create(broker, "persistent://public/default/numbers", 2)


@pytest.fixture
def target(broker: BrokerProcess) -> str:
    return create(broker, "persistent://public/default/copies", 1)


def auditor(client: Client, topic: str) -> Consumer:
    return client.subscribe(topic, "auditor", initial_position=InitialPosition.Earliest)


class Numbers:
    """Numbers published in order to both partitions in turn, with an end mark in each partition."""

    def __init__(self, client: Client, topic: str) -> None:
        parts = [f"{topic}-partition-{part}" for part in range(2)]
        self._producers = [client.create_producer(part) for part in parts]
        self.published = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._producers[self.published % 2].send_async(b"%d" % self.published)
            self.published += 1
        for producer in self._producers:
            producer.flush()

    def end(self) -> None:
        for producer in self._producers:
            producer.send(END)


def copies_of(count: int, consumer: Consumer) -> Counter[bytes]:
    """Receive `count` visible copies."""
    return Counter(consumer.receive(timeout_millis=SOON_MS).data() for _ in range(count))


def copies_to_the_end(consumer: Consumer) -> Counter[bytes]:
    """All visible copies until both end marks; the copies of a partition come in order."""
    found: Counter[bytes] = Counter()
    while found[END] < 2:
        message = consumer.receive(timeout_millis=SOON_MS)
        found[message.data()] += 1
        consumer.acknowledge(message)
    del found[END]
    return found


def test_nothing_is_lost_or_doubled_when_task_managers_are_killed(
    flink: FlinkCluster, broker: BrokerProcess, client: Client, source: str, target: str
) -> None:
    numbers, copies = Numbers(client, source), auditor(client, target)
    with flink.running(
        flink.source(broker, source), flink.sink(broker, target, TRANSACTION_MS)
    ) as job:
        numbers.publish(200)
        copies.receive(timeout_millis=SOON_MS)
        for _ in range(2):
            numbers.publish(200)
            restarts = flink.restarts(job)
            flink.kill_a_task_manager()
            numbers.publish(200)
            flink.wait_until_running_again(job, restarts)
        numbers.end()
        copies.close()
        found = copies_to_the_end(auditor(client, target))
    assert found == Counter(b"%d" % number for number in range(numbers.published))


@pytest.mark.feature("broker restarts")
def test_nothing_is_lost_when_the_broker_is_killed(
    flink: FlinkCluster, broker: BrokerProcess, client: Client, source: str, target: str
) -> None:
    """The source rereads messages that it had not acknowledged durably, without noticing
    (docs/clients.md). Later messages are copied once.
    """
    numbers = Numbers(client, source)
    with flink.running(
        flink.source(broker, source), flink.sink(broker, target, TRANSACTION_MS)
    ) as job:
        numbers.publish(200)
        with auditor(client, target) as copies:
            assert copies_of(200, copies) == Counter(b"%d" % number for number in range(200))
        restarts = flink.restarts(job)
        broker.kill()
        broker.start()
        numbers.publish(200)
        numbers.end()
        found = copies_to_the_end(auditor(client, target))
        # A restarted job reads from its checkpoint, which would hide the effect.
        assert flink.restarts(job) == restarts
    assert found.keys() == {b"%d" % number for number in range(numbers.published)}
    assert {number for number, times in found.items() if times > 1} <= {
        b"%d" % number for number in range(200)
    }


@pytest.mark.feature("sticky hash ranges")
def test_a_job_takes_the_keys_of_its_ranges_alone(
    flink: FlinkCluster, broker: BrokerProcess, client: Client, source: str, target: str
) -> None:
    copies = auditor(client, target)
    # The sink's transactions have its default timeout of three hours.
    taken = flink.source(broker, source, flink.ranges_of_keys("a", "b"))
    with client.create_producer(source, batching_enabled=False) as producer:
        for number in range(50):
            for key in "dcba":
                producer.send_async(b"%s%d" % (key.encode(), number), partition_key=key)
        producer.flush()
    with flink.running(taken, flink.sink(broker, target)):
        found = [copies.receive(timeout_millis=SOON_MS).data() for _ in range(100)]
    assert sorted(found) == sorted(b"%s%d" % (key, n) for key in (b"a", b"b") for n in range(50))
