"""Kafka Connect: connectors for files, while the worker and the broker are killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import kafka_connect
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_connect import Trickle, sink, source, wait_for_lines
from killed_jobs import Written

import pybroker.testing
from pybroker.testing import RunningBroker
from pybroker.testing.reserved_port import ReservedPort

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC: Final = "connect-lines"
SOME: Final = 100


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(data_dir=tmp_path / "data", kafka=True) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka_bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
        yield broker


@pytest.fixture
def trickle(tmp_path: Path) -> Iterator[Trickle]:
    lines = Trickle(tmp_path / "given")
    yield lines
    lines.end()


def test_a_standalone_worker_copies_files_through_a_topic(
    broker: RunningBroker, tmp_path: Path, trickle: Trickle
) -> None:
    given, got = tmp_path / "given", tmp_path / "got"
    connectors = source("source", given, TOPIC), sink("sink", got, TOPIC)
    with kafka_connect.standalone(broker.kafka_bootstrap, tmp_path, *connectors):
        before = wait_for_lines(got, SOME)
        broker.kill_and_restart()
        wait_for_lines(got, len(before) + SOME)
        written = trickle.end()
        lines = wait_for_lines(got, len(written))
    # In the first order, whatever was repeated: such a worker promises at least once.
    assert list(dict.fromkeys(lines)) == written


def test_an_exactly_once_source_writes_each_line_once_whoever_is_killed(
    broker: RunningBroker, tmp_path: Path, trickle: Trickle
) -> None:
    read, rest = Written(broker.kafka_bootstrap, TOPIC), ReservedPort()
    settings = source("source", tmp_path / "given", TOPIC)
    with kafka_connect.distributed(broker.kafka_bootstrap, tmp_path, rest.number):
        kafka_connect.ask(rest.number, "connectors/source/config", settings)
        read.read(SOME)
    with kafka_connect.distributed(broker.kafka_bootstrap, tmp_path, rest.number):
        read.read(len(read.records) + SOME)
        broker.kill_and_restart()
        read.read(len(read.records) + SOME)
        written = trickle.end()
        read.read(len(written))
        records = read.read_to_the_end()
    rest.release()
    assert [value.decode() for _, value in records] == written
