"""Flink's own Kafka source and sink: a job that copies exactly once, despite kills."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from killed_jobs import Written
from official_flink import FlinkCluster, flink_cluster

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

INPUT: Final = "numbers"
OUTPUT: Final = "copies"
# A killed task's open transaction hides later records for this long, if no other task aborts it.
TRANSACTION_MS: Final = 60_000


@pytest.fixture(scope="module")
def flink() -> Iterator[FlinkCluster]:
    with flink_cluster() as cluster:
        yield cluster


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(data_dir=tmp_path / "data", kafka=True) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka_bootstrap})
        for each in admin.create_topics([NewTopic(INPUT, 2), NewTopic(OUTPUT, 1)]).values():
            each.result(30)
        yield broker


class Numbers:
    def __init__(self, broker: RunningBroker) -> None:
        self._producer = Producer({"bootstrap.servers": broker.kafka_bootstrap})
        self.published = 0

    def publish(self, count: int) -> None:
        for number in range(self.published, self.published + count):
            self._producer.produce(INPUT, str(number), partition=number % 2)
        assert self._producer.flush(60) == 0
        self.published += count


def test_nothing_is_lost_or_doubled_when_task_managers_and_the_broker_are_killed(
    flink: FlinkCluster, broker: RunningBroker
) -> None:
    numbers, written = Numbers(broker), Written(broker.kafka_bootstrap, OUTPUT)
    source = flink.kafka_source(broker.kafka_bootstrap, INPUT)
    sink = flink.kafka_sink(broker.kafka_bootstrap, OUTPUT, TRANSACTION_MS)
    with flink.running(source, sink) as job:
        numbers.publish(200)
        written.read(1)
        for _ in range(2):
            numbers.publish(200)
            restarts = flink.restarts(job)
            flink.kill_a_task_manager()
            numbers.publish(200)
            flink.wait_until_running_again(job, restarts)
        written.read(numbers.published)
        numbers.publish(200)
        broker.kill_and_restart()
        numbers.publish(200)
        written.read(numbers.published)
    found = Counter(value for _, value in written.read_to_the_end())
    assert found == Counter(b"%d" % number for number in range(numbers.published))
