"""Kafka Streams with exactly_once_v2: counts go on without a gap or a repetition, whoever dies."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_streams_app import INPUT, OUTPUT
from killed_jobs import Written, until_killed

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

HERE: Final = Path(__file__).parent
PARTITIONS: Final = 2
KEYS: Final = 5
RECORDS: Final = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(data_dir=tmp_path / "data", kafka=True) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka_bootstrap})
        created = admin.create_topics([NewTopic(name, PARTITIONS) for name in (INPUT, OUTPUT)])
        for each in created.values():
            each.result(30)
        yield broker


def publish(broker: RunningBroker, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka_bootstrap})
    for number in numbers:
        producer.produce(INPUT, "a record", f"key {number % KEYS}")
    assert producer.flush(60) == 0


def instance(broker: RunningBroker, folder: Path, number: int) -> AbstractContextManager[None]:
    paths = os.pathsep.join((str(HERE), str(HERE.parent / "support")))
    state = folder / f"state-{number}"
    state.mkdir(exist_ok=True)
    command = [sys.executable, str(HERE / "kafka_streams_app.py")]
    command += [broker.kafka_bootstrap, str(state)]
    return until_killed(
        command, {**os.environ, "PYTHONPATH": paths}, folder / f"instance-{number}.log"
    )


def test_counts_are_exact_when_instances_and_the_broker_are_killed(
    broker: RunningBroker, tmp_path: Path
) -> None:
    written = Written(broker.kafka_bootstrap, OUTPUT)
    with ExitStack() as instances:
        instances.enter_context(instance(broker, tmp_path, 0))
        publish(broker, range(RECORDS // 4))
        written.read(20)
        with instance(broker, tmp_path, 1):
            publish(broker, range(RECORDS // 4, RECORDS // 2))
            written.read(RECORDS // 4 + 20)
        publish(broker, range(RECORDS // 2, RECORDS * 3 // 4))
        written.read(RECORDS // 2 + 20)
        broker.kill_and_restart()
        written.read(RECORDS // 2 + 40)
        instances.close()
    with instance(broker, tmp_path, 2):
        publish(broker, range(RECORDS * 3 // 4, RECORDS))
        written.read(RECORDS)
        records = written.read_to_the_end()
    for number in range(KEYS):
        key = f"key {number}".encode()
        counts = [int.from_bytes(value) for found, value in records if found == key]
        assert counts == list(range(1, RECORDS // KEYS + 1))
