"""Spark's own Kafka source and sink, and pybroker's exactly_once behind that source."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from environments import ROOT, environment, with_spark
from killed_jobs import Written, until_killed
from official_kafka import spark_jars
from spark_kafka_job import INPUT, OUTPUT

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

HERE: Final = Path(__file__).parent
PARTITIONS: Final = 2
ROWS: Final = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(data_dir=tmp_path / "data", kafka=True) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka_bootstrap})
        created = admin.create_topics([NewTopic(name, PARTITIONS) for name in (INPUT, OUTPUT)])
        for each in created.values():
            each.result(30)
        yield broker


def publish(broker: RunningBroker, rows: range) -> None:
    """Half of them in a transaction; and as many that are aborted."""
    settings = {"bootstrap.servers": broker.kafka_bootstrap, "transactional.id": "numbers"}
    producer = Producer(settings)
    producer.init_transactions(30)
    for values, commits in ((rows[::2], True), (rows, False), (rows[1::2], True)):
        producer.begin_transaction()
        for number in values:
            mark = "" if commits else "aborted "
            headers = {"number": str(number)}
            producer.produce(INPUT, f"{mark}{number}", str(number % 7), headers=headers)
        end = producer.commit_transaction if commits else producer.abort_transaction
        end(30)


def job(broker: RunningBroker, folder: Path, kind: str) -> tuple[list[str], dict[str, str]]:
    python = environment("4.1", with_spark("4.1.*"))
    jars = ",".join(map(str, spark_jars()))
    given = [jars, broker.kafka_bootstrap, broker.service_url, str(folder), kind]
    more = {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    return [str(python), str(HERE / "spark_kafka_job.py"), *given], {**os.environ, **more}


def test_a_topic_is_a_table_and_takes_one(broker: RunningBroker, tmp_path: Path) -> None:
    publish(broker, range(ROWS))
    command, environ = job(broker, tmp_path, "table")
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    assert sorted(int(row["value"]) for row in rows) == list(range(ROWS))
    assert all(row["key"] == str(int(row["value"]) % 7) for row in rows)
    assert all(row["headers"] == [{"key": "number", "value": row["value"]}] for row in rows)
    places = [(row["partition"], row["offset"]) for row in rows]
    assert len(set(places)) == ROWS
    written = Written(broker.kafka_bootstrap, OUTPUT)
    written.read(ROWS)
    assert values(written.read_to_the_end()) == Counter(map(str, range(ROWS)))


def values(records: list[tuple[bytes | None, bytes]]) -> Counter[str]:
    return Counter(value.decode() for _, value in records)


def copied(broker: RunningBroker, folder: Path, kind: str) -> Counter[str]:
    """Kills the job twice, and the broker once, amid the copying."""
    written, log = Written(broker.kafka_bootstrap, OUTPUT), folder / "job.log"
    command, environ = job(broker, folder, kind)
    publish(broker, range(ROWS // 3))
    with until_killed(command, environ, log):
        written.read(40)
    publish(broker, range(ROWS // 3, ROWS * 2 // 3))
    with until_killed(command, environ, log):
        written.read(ROWS // 3 + 20)
        broker.kill_and_restart()
        written.read(ROWS // 3 + 60)
    publish(broker, range(ROWS * 2 // 3, ROWS))
    with until_killed(command, environ, log):
        written.read(ROWS)
        return values(written.read_to_the_end())


def test_nothing_is_lost_by_a_stream_from_and_to_kafka_topics(
    broker: RunningBroker, tmp_path: Path
) -> None:
    """Spark's sink writes at least once."""
    assert set(copied(broker, tmp_path, "copy")) == {str(number) for number in range(ROWS)}


def test_exactly_once_behind_spark_s_kafka_source(broker: RunningBroker, tmp_path: Path) -> None:
    assert copied(broker, tmp_path, "once") == Counter(str(number) for number in range(ROWS))
