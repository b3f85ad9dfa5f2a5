"""Writes to format("pulsar") by a real Spark, local[2]: jobs and streams, whole or not at all."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from avro_decoder import Decoder
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pybroker.base.errors import NotAllowed
from pybroker.client import Client, ConsumerType, InitialPosition, Message
from pybroker.demo.topics import create_partitioned, read_all
from pybroker.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.spark

ROWS = 2000
BY_DRIVER, BY_TASKS = "1000000", "1"
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    test, _, parameter = request.node.name.replace("_", "-").strip("]").partition("[")
    name = f"persistent://public/default/{test[:60]}-{parameter}"
    create_partitioned(broker.admin_url, name, 3)
    with Client(broker.service_url) as client:
        client.subscribe(name, "keep", initial_position=InitialPosition.Earliest)
    return name


def numbers(spark: SparkSession, count: int = ROWS) -> DataFrame:
    return spark.range(0, count, 1, 2).select(F.col("id").cast("string").alias("value"))


def save(frame: DataFrame, broker: BrokerProcess, topic: str, **options: str) -> None:
    named = {"service.url": broker.service_url, "topic": topic, **options}
    frame.write.format("pulsar").mode("append").options(**named).save()


def read(broker: BrokerProcess, topic: str) -> list[int]:
    return sorted(int(message.data()) for message in read_all(broker.service_url, [topic]))


@pytest.mark.parametrize("max_driver_bytes", [BY_DRIVER, BY_TASKS])
def test_a_job_writes_each_row_once(spark, broker, topic, max_driver_bytes):
    save(numbers(spark), broker, topic, maxDriverBytesPerTask=max_driver_bytes)
    assert read(broker, topic) == list(range(ROWS))


@pytest.mark.parametrize("max_driver_bytes", [BY_DRIVER, BY_TASKS])
def test_nothing_of_a_job_that_fails_is_seen(spark, broker, topic, max_driver_bytes):
    """One of its tasks has finished, and has published its rows."""
    is_last = F.col("value") == str(ROWS - 1)
    broken = numbers(spark).where(F.when(is_last, F.raise_error("broken")).otherwise(True))
    with pytest.raises(PySparkException):
        save(broken, broker, topic, maxDriverBytesPerTask=max_driver_bytes)
    save(numbers(spark, 10), broker, topic)
    assert read(broker, topic) == list(range(10))


def test_a_message_is_what_the_connectors_columns_say(spark, broker, topic):
    frame = spark.sql(
        "select 'hello' value, 'k' `__key`, timestamp '2024-01-01 00:00:00 UTC' `__eventTime`,"
        " map('a', 'b') `__messageProperties`, 'left out' `__messageId`"
    )
    save(frame, broker, topic)
    [message] = read_all(broker.service_url, [topic])
    assert (message.data(), message.partition_key()) == (b"hello", "k")
    assert (message.event_timestamp(), message.properties()) == (1704067200000, {"a": "b"})


def test_columns_are_written_as_avro_with_their_schema(spark, broker, topic):
    frame = spark.sql(
        "select 7L id, cast(1.25 as decimal(10,2)) amount, array(named_struct('a', 'b')) parts,"
        " cast(null as date) day, 'k' `__key`"
    )
    save(frame, broker, topic, maxDriverBytesPerTask=BY_TASKS)
    path = topic.replace("://", "/")
    with urllib.request.urlopen(
        f"{broker.admin_url}/admin/v2/schemas/{path[11:]}/schema"
    ) as answer:
        stored = json.load(answer)
    schema = json.loads(stored["data"])
    [message] = read_all(broker.service_url, [topic])
    assert (stored["type"], message.partition_key()) == ("AVRO", "k")
    assert message.schema_version() == int(stored["version"]).to_bytes(8, "big")
    assert Decoder(message.data()).read(schema) == {
        "id": 7,
        "amount": Decimal("1.25"),
        "parts": [{"a": "b"}],
        "day": None,
    }


EVERYTHING = """
    select 1L id, cast(-12.34 as decimal(12,2)) money, date '1969-12-31' day,
      timestamp '2024-02-29 12:00:00.123456 UTC' at, named_struct('a', 1, 'b', 'x') nested,
      array(1L, null, 3L) list, map('k', 1.5D, 'n', null) scores, x'00ff' raw, true flag,
      timestamp_ntz '1582-10-10 01:02:03.999999' clock
    union all select 2L, null, null, null, null, array(), map(), null, null, null
"""


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_rows_of_every_kind_come_back_as_they_were(spark, broker, topic, kind):
    rows = spark.sql(EVERYTHING)
    save(rows, broker, topic, **{"schema.type": kind})
    found = spark.read.format("pulsar").option("service.url", broker.service_url)
    back = found.option("topic", topic).load().select(rows.columns)
    assert sorted(back.collect(), key=str) == sorted(rows.collect(), key=str)


def test_a_stream_of_every_kind_comes_back_as_it_was(spark, broker, topic, tmp_path):
    rows = spark.sql(EVERYTHING).withColumn("__messageProperties", F.expr("map('a', 'b')"))
    rows.write.parquet(str(tmp_path / "rows"))
    source = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
    named = {"service.url": broker.service_url, "topic": topic}
    writer = source.writeStream.format("pulsar").options(**named)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    back = spark.read.format("pulsar").options(**named).load().select(rows.columns)
    assert sorted(back.collect(), key=str) == sorted(rows.collect(), key=str)


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_columns_that_do_not_go_with_the_topics_schema_are_refused(spark, broker, topic, kind):
    save(spark.sql("select 7L id"), broker, topic, **{"schema.type": kind})
    with pytest.raises(PySparkException, match="are incompatible with the schema"):
        save(spark.sql("select 'text' id, 1 more"), broker, topic, **{"schema.type": kind})
    assert len(list(read_all(broker.service_url, [topic]))) == 1


def test_each_row_goes_to_the_topic_that_it_names(spark, broker, topic):
    named = numbers(spark, 100).withColumn("__topic", F.lit(topic))
    writer = named.write.format("pulsar").mode("append").option("service.url", broker.service_url)
    with pytest.raises(PySparkException, match="controlTopic is required"):
        writer.save()
    writer.option("controlTopic", f"{topic}-control").save()
    assert read(broker, topic) == list(range(100))


def test_each_row_goes_to_the_partition_that_it_names(spark, broker, topic):
    rows = spark.sql("select string(id) value, int(id % 3) partition, 'k' key from range(30)")
    save(rows, broker, topic)
    found = {
        (int(message.data()) % 3, message.topic_name().rpartition("-")[2])
        for message in read_all(broker.service_url, [topic])
    }
    assert found == {(0, "0"), (1, "1"), (2, "2")}


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd", "snappy"])
def test_compressed_entries_are_read_as_they_were(spark, broker, topic, codec):
    name = {"pulsar.producer.compressionType": codec}
    save(numbers(spark), broker, topic, maxDriverBytesPerTask=BY_TASKS, **name)
    found = spark.read.format("pulsar").option("service.url", broker.service_url)
    rows = found.option("topic", topic).load().selectExpr("int(string(value)) n").collect()
    assert sorted(row.n for row in rows) == list(range(ROWS))


def test_key_based_entries_are_divided_by_key(spark, broker, topic):
    """Both for rows published by the driver and for rows published by tasks."""
    frame = numbers(spark).selectExpr("value", "string(int(string(value)) % 100) __key")
    with Client(broker.service_url) as client:
        consumers = [
            client.subscribe(topic, "divided", consumer_type=ConsumerType.KeyShared)
            for _ in range(2)
        ]
        for max_driver_bytes in (BY_DRIVER, BY_TASKS):
            options = {"maxDriverBytesPerTask": max_driver_bytes, "batchingType": "KeyBased"}
            save(frame, broker, topic, **options)
        got: list[list[Message]] = [[], []]
        while sum(map(len, got)) < 2 * ROWS:
            for consumer, messages in zip(consumers, got, strict=True):
                messages += consumer.batch_receive()
    keys = [{message.partition_key() for message in messages} for messages in got]
    assert all(keys) and not keys[0] & keys[1]


def test_overwriting_is_refused(spark, broker, topic):
    writer = numbers(spark).write.format("pulsar").mode("overwrite")
    with pytest.raises(NotAllowed, match="appends messages to topics"):
        writer.options(**{"service.url": broker.service_url, "topic": topic}).save()


class Stream:
    """A stream from files, with 100 numbers per batch."""

    def __init__(self, spark, broker, topic, folder: Path):
        self.spark, self.broker, self.topic = spark, broker, topic
        self.input, self.checkpoint = folder / "input", str(folder / "checkpoint")
        self.name: str | None = None
        self.input.mkdir()

    def configure(self, name: str) -> None:
        """The checkpoint is in the configured folder of all checkpoints, under the query's name."""
        folder = Path(self.checkpoint).parent
        self.spark.conf.set(CHECKPOINTS, str(folder))
        self.name, self.checkpoint = name, str(folder / name)

    def remove(self, first: int) -> None:
        (self.input / f"{first:06}.txt").unlink()

    def add(self, first: int, count: int = 100) -> None:
        lines = "\n".join(str(number) for number in range(first, first + count))
        (self.input / f"{first:06}.txt").write_text(lines)

    def run(self, **options: str) -> None:
        """Process all files, one per batch."""
        source = self.spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        named = {
            "service.url": self.broker.service_url,
            "topic": self.topic,
            "maxDriverBytesPerTask": BY_TASKS,
            **options,
        }
        rows = source.load(str(self.input)).repartition(2)
        writer = rows.writeStream.format("pulsar").options(**named)
        if self.name is None:
            writer = writer.option("checkpointLocation", self.checkpoint)
        else:
            writer = writer.queryName(self.name)
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def stream(spark, broker, topic, tmp_path) -> Iterator[Stream]:
    yield Stream(spark, broker, topic, tmp_path)
    spark.conf.unset(CHECKPOINTS)


def test_a_stream_of_files_is_written_once_over_its_restarts(stream, broker, topic):
    stream.add(0)
    stream.add(100)
    stream.run()
    stream.add(200)
    stream.run(maxDriverBytesPerTask=BY_DRIVER)
    assert read(broker, topic) == list(range(300))


def test_a_batch_that_spark_has_not_recorded_is_not_written_again(stream, broker, topic):
    """The driver has died between the commit and Spark's own record of it."""
    stream.add(0)
    stream.run()
    for record in Path(stream.checkpoint, "commits").iterdir():
        record.unlink()
    stream.add(100)
    stream.run()
    assert read(broker, topic) == list(range(200))


def test_a_restored_checkpoint_is_refused(stream, broker, topic):
    stream.add(0)
    stream.add(100)
    stream.run()
    for folder in ("commits", "offsets"):
        for record in Path(stream.checkpoint, folder).glob("*1*"):
            record.unlink()
    Path(stream.checkpoint, "commits", "0").unlink()
    with pytest.raises(PySparkException, match="is older than this query's last commit"):
        stream.run()
    assert read(broker, topic) == list(range(200))


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("configured", [False, True])
def test_a_checkpoint_that_is_one_batch_old_is_refused_unless_the_batch_is_the_same(
    stream, spark, broker, topic, replaced, configured
):
    """Also with files as the source, whose offsets are only counted; and with a folder of all
    checkpoints in the configuration instead of the option."""
    if configured:
        stream.configure(f"query-{replaced}")
    stream.add(0)
    stream.run()
    copy = f"{stream.checkpoint}.copy"
    shutil.copytree(stream.checkpoint, copy)
    stream.add(100)
    stream.run()
    shutil.rmtree(stream.checkpoint)
    shutil.move(copy, stream.checkpoint)
    if replaced:
        stream.remove(100)
        stream.add(200)
        with pytest.raises(PySparkException, match="the checkpoint was restored from a copy"):
            stream.run()
    else:
        stream.run()
    assert read(broker, topic) == list(range(200))
