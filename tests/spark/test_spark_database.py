"""A real Spark writes to a topic and to a database, once each: through PEP 249 and through JDBC."""

import datetime
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pybroker.client import Client, InitialPosition, InvalidConfiguration
from pybroker.demo.topics import read_all
from pybroker.spark import Database, Step, exactly_once, jdbc
from pybroker.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.spark

NUMBERS = list(range(60))
_numbers = itertools.count(1)


class Pipeline:
    """Copies numbers to a topic and to a table, twenty in a batch."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path) -> None:
        self.spark, self.broker = spark, broker
        name = f"persistent://public/default/database-{next(_numbers)}"
        self.source, self.copies, self.control = f"{name}-in", f"{name}-out", f"{name}-control"
        self.checkpoint = str(folder / "checkpoint")
        self.deaths: list[int] = []
        with Client(broker.service_url) as client:
            client.subscribe(self.copies, "keep", initial_position=InitialPosition.Earliest)
            producer = client.create_producer(self.source)
            for number in NUMBERS:
                producer.send(b"%d" % number)

    def run(self, database: Database) -> None:
        source = self.spark.readStream.format("pulsar").options(
            service_url=self.broker.service_url,
            topic=self.source,
            subscription="copier",
            max_entries_per_trigger="20",
        )
        process = exactly_once(
            lambda batch, batch_id: {self.copies: batch.select("value")},
            service_url=self.broker.service_url,
            checkpoint=self.checkpoint,
            control_topic=self.control,
            on_step=self._on_step,
            database=database,
        )
        stream = source.load().writeStream.foreachBatch(process)
        stream = stream.option("checkpointLocation", self.checkpoint)
        stream.trigger(availableNow=True).start().awaitTermination()

    def _on_step(self, step: Step, work: Any) -> None:
        if step is Step.MARKED and work.batch_id == 1 and not self.deaths:
            self.deaths.append(work.batch_id)
            self.broker.kill()
            self.broker.start()

    def published(self) -> list[int]:
        messages = read_all(self.broker.service_url, [self.copies])
        return sorted(int(message.data()) for message in messages)


def values_of(batch: DataFrame) -> list[tuple[int]]:
    return [(int(row.value),) for row in batch.select("value").toLocalIterator()]


@pytest.fixture
def pipeline(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, broker, tmp_path)


def test_sqlite_has_each_row_once_though_the_broker_dies_before_a_commit(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE copies (number INTEGER)")
    connection.close()

    def store(connection: Any, batch: DataFrame, batch_id: int) -> None:
        connection.executemany("INSERT INTO copies VALUES (?)", values_of(batch))

    pipeline.run(Database(lambda: sqlite3.connect(path), store))
    assert pipeline.deaths == [1]
    with sqlite3.connect(path) as connection:
        rows = [row[0] for row in connection.execute("SELECT number FROM copies ORDER BY 1")]
    connection.close()
    assert (rows, pipeline.published()) == (NUMBERS, NUMBERS)


def test_a_jdbc_database_has_each_row_once_though_the_broker_dies_before_a_commit(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Derby comes with Spark."""
    url = f"jdbc:derby:{tmp_path / 'shop'};create=true"
    connection = jdbc(url)
    connection.execute("CREATE TABLE copies (number INTEGER)").close()
    connection.commit()
    connection.close()

    def store(connection: Any, batch: DataFrame, batch_id: int) -> None:
        connection.executemany("INSERT INTO copies VALUES (?)", values_of(batch))

    pipeline.run(Database(lambda: jdbc(url), store))
    assert pipeline.deaths == [1]
    connection = jdbc(url)
    rows = [row[0] for row in connection.execute("SELECT number FROM copies ORDER BY 1").fetchall()]
    connection.close()
    assert (rows, pipeline.published()) == (NUMBERS, NUMBERS)


def test_a_jdbc_connection_is_one_of_pep_249(spark: SparkSession, tmp_path: Path) -> None:
    connection = jdbc(f"jdbc:derby:{tmp_path / 'values'};create=true", user="test")
    assert connection.autocommit is False
    connection.execute(
        "CREATE TABLE v (a BIGINT, b VARCHAR(9), c DECIMAL(20, 2), d DATE, e TIMESTAMP, "
        "f BOOLEAN, g DOUBLE, h VARCHAR(9) FOR BIT DATA)"
    )
    connection.commit()
    row = (
        *(2**40, "text", Decimal("1.50"), datetime.date(2026, 1, 2)),
        *(datetime.datetime(2026, 1, 2, 3, 4, 5), True, 0.5, b"\x00\xff"),
    )
    connection.execute("INSERT INTO v VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.executemany("INSERT INTO v (a) VALUES (?)", [(each,) for each in range(2_001)])
    cursor = connection.execute("SELECT a, b, c, f, g, h FROM v WHERE b IS NOT NULL")
    assert [column[0] for column in cursor.description or ()] == list("ABCFGH")
    found = cursor.fetchone()
    assert found is not None and cursor.fetchone() is None
    assert (found[0], found[1], str(found[2]), *found[3:]) == (
        *(2**40, "text", "1.50", True, 0.5, b"\x00\xff"),
    )
    counted = connection.execute("SELECT COUNT(*) FROM v").fetchmany(2)
    assert counted == [(2_002,)]
    connection.rollback()
    assert connection.execute("SELECT a FROM v").fetchall() == []
    connection.close()
    connection.close()


def test_a_database_whose_driver_is_missing_is_said_so(spark: SparkSession) -> None:
    with pytest.raises(InvalidConfiguration, match=r"takes jdbc:nobody:x: add its jar"):
        jdbc("jdbc:nobody:x")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_driver_is_followed_as_the_database_says(
    broker: BrokerProcess, tmp_path: Path, when: str
) -> None:
    """Killed around the database's COMMIT, with its JVM; another process goes on."""
    name = f"persistent://public/default/killed-{when}"
    with Client(broker.service_url) as client:
        client.subscribe(f"{name}-out", "keep", initial_position=InitialPosition.Earliest)
        producer = client.create_producer(f"{name}-in")
        for number in NUMBERS:
            producer.send(b"%d" % number)
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE copies (number INTEGER)")
    codes = [_driven(broker, name, tmp_path, each) for each in (when, "never")]
    assert codes == [-signal.SIGKILL, 0], (tmp_path / "log").read_text()[-3000:]
    rows = [row[0] for row in connection.execute("SELECT number FROM copies ORDER BY 1")]
    connection.close()
    messages = read_all(broker.service_url, [f"{name}-out"])
    assert rows == sorted(int(message.data()) for message in messages) == NUMBERS
    with Client(broker.service_url) as client:
        assert client.prepared_transactions() == []


def _driven(broker: BrokerProcess, name: str, folder: Path, when: str) -> int:
    program = Path(__file__).with_name("spark_database_driver.py")
    with (folder / "log").open("ab") as log:
        return subprocess.run(
            [sys.executable, str(program), broker.service_url, name, str(folder), when],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
            start_new_session=True,
            timeout=400,
            check=False,
        ).returncode
