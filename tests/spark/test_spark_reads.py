"""spark.read and readStream with a real Spark: behaviour that tests without one cannot show."""

import itertools
import json
from contextlib import suppress

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from pybroker.base.errors import ConsumerBusy
from pybroker.client import Client, InitialPosition, MessageId, Outgoing, encode_batch
from pybroker.demo.topics import create_partitioned
from pybroker.spark import register
from pybroker.spark.compat import LIMITS_TRIGGERS, PUSHES_FILTERS

pytestmark = pytest.mark.spark

_NUMBERS = itertools.count()


@pytest.fixture
def topic(broker):
    """A topic with two partitions of 40 numbers each, four per entry."""
    topic = f"persistent://public/default/read-{next(_NUMBERS)}"
    create_partitioned(broker.admin_url, topic, 2)
    publish(broker, topic, range(80))
    return topic


def publish(broker, topic, numbers, per_entry=4):
    with Client(broker.service_url) as client:
        for partition, name in enumerate(client.get_topic_partitions(topic)):
            client.subscribe(name, "keep", initial_position=InitialPosition.Earliest)
            producer = client.create_producer(name)
            mine = [
                Outgoing(b"%d" % n, partition_key=f"k{n}", properties={"n": str(n)})
                for n in numbers
                if n % 2 == partition
            ]
            for first in range(0, len(mine), per_entry):
                producer.send_batch(encode_batch(mine[first : first + per_entry]))


def options_of(broker, topic, **options):
    return {"service.url": broker.service_url, "topic": topic} | options


def load(spark, broker, topic, **options):
    return spark.read.format("pulsar").options(**options_of(broker, topic, **options)).load()


def sums(frame):
    number = F.col("value").cast("string").cast("long")
    row = frame.agg(F.count("*").alias("count"), F.sum(number).alias("sum")).first()
    return row["count"], row["sum"]


def run(frame, path):
    """Run an available-now query; returns its numbers and its progress."""
    rows = []

    def collect(batch, batch_id):
        rows.extend(int(bytes(row.value)) for row in batch.select("value").collect())

    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return rows, [each for each in query.recentProgress if each["numInputRows"]]


def stream(spark, broker, topic, **options):
    register(spark)
    given = options_of(broker, topic, **options)
    return spark.readStream.format("pulsar").options(**given).load()


# --- batch ---------------------------------------------------------------------------------------


def test_a_topic_is_a_frame_with_the_connectors_columns(spark, broker, topic):
    frame = load(spark, broker, topic)
    assert [f"{field.name} {field.dataType.simpleString()}" for field in frame.schema] == [
        "value binary",
        "__key binary",
        "__topic string",
        "__messageId binary",
        "__publishTime timestamp",
        "__eventTime timestamp",
        "__messageProperties map<string,string>",
    ]
    row = frame.where("cast(value as string) = '7'").first()
    assert (bytes(row["__key"]), row["__topic"]) == (b"k7", f"{topic}-partition-1")
    assert (row["__messageProperties"], row["__eventTime"]) == ({"n": "7"}, None)
    place = MessageId.deserialize(bytes(row["__messageId"]))
    assert (place.entry_id(), place.batch_index(), place.partition()) == (0, 3, 1)


def test_sql_over_a_topic(spark, broker, topic):
    load(spark, broker, topic).createOrReplaceTempView("numbers")
    query = "select count(*) as c from numbers where __messageProperties['n'] < '5'"
    assert spark.sql(query).first().c == sum(str(n) < "5" for n in range(80))


def test_only_the_columns_that_are_asked_for_are_read(spark, broker, topic):
    reader = spark.read.format("pulsar").options(**options_of(broker, topic))
    frame = reader.schema("key string, value binary").load()
    assert frame.columns == ["key", "value"]
    assert sums(frame) == (80, sum(range(80)))


def test_a_split_partition_is_read_once(spark, broker):
    topic = f"persistent://public/default/split-{next(_NUMBERS)}"
    publish(broker, topic, range(0, 400, 2), per_entry=2)
    frame = load(spark, broker, topic, minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert sums(frame) == (200, sum(range(0, 400, 2)))


def scanned(frame):
    """The number of rows from the tasks, and the number after Spark's filters."""
    left = len(frame.collect())
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return scan.metrics().apply("numOutputRows").value(), left


def test_filters_on_metadata_choose_what_is_read(spark, broker, topic):
    frame = load(spark, broker, topic, publishTimeDisorderMs="1")
    everything = 80 if not PUSHES_FILTERS else None  # PySpark 4.0 filters after reading
    found = frame.where("cast(value as string) = '42'").first()
    by_id = frame.where(F.col("__messageId") == F.lit(bytes(found["__messageId"])))
    assert scanned(by_id) == (everything or 4, 1)  # one entry
    by_topic = frame.where(F.col("__topic").endswith("-partition-1"))
    assert scanned(by_topic) == (everything or 40, 40)
    by_time = frame.where("__publishTime > current_timestamp() - interval 1 day")
    assert scanned(by_time) == (80, 80)
    before = frame.where("__publishTime < timestamp '2001-01-01'")
    assert scanned(before) == (everything or 0, 0)


def test_filters_on_publish_times_read_all_unless_their_disorder_is_known(spark, broker, topic):
    before = load(spark, broker, topic).where("__publishTime < timestamp '2001-01-01'")
    assert scanned(before) == (80, 0)


def test_an_unknown_option_is_an_error_that_suggests(spark, broker, topic):
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        load(spark, broker, topic, startingOffset="earliest")


# --- streams -------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_its_checkpoint(spark, broker, topic, tmp_path):
    def read():
        frame = stream(spark, broker, topic, startingOffsets="earliest")
        return sorted(run(frame, tmp_path)[0])

    assert read() == list(range(80))
    publish(broker, topic, range(80, 100))
    assert read() == list(range(80, 100))


def test_a_stream_begins_at_the_latest_message_by_default(spark, broker, topic, tmp_path):
    assert run(stream(spark, broker, topic), tmp_path)[0] == []
    publish(broker, topic, range(80, 90))
    assert sorted(run(stream(spark, broker, topic), tmp_path)[0]) == list(range(80, 90))


def test_a_trigger_reads_no_more_than_its_limit_of_rows(spark, broker, topic, tmp_path):
    frame = stream(spark, broker, topic, startingOffsets="earliest", maxRowsPerTrigger="16")
    rows, progress = run(frame, tmp_path)
    assert sorted(rows) == list(range(80))
    read = [each["numInputRows"] for each in progress]
    assert read == ([16] * 5 if LIMITS_TRIGGERS else [80])


def followed_to(client, name):
    """The cursor, read once Spark's own consumer, of another type, has left."""
    while True:  # one round trip each; the test's timeout ends it
        with suppress(ConsumerBusy):
            return client.subscribe(name, "follower").get_mark_delete_position().entry_id()


def test_a_predefined_subscription_follows_what_spark_has_finished(spark, broker, topic, tmp_path):
    options = {"predefinedSubscription": "follower", "startingOffsets": "earliest"}
    frame = stream(spark, broker, topic, maxEntriesPerTrigger="4", **options)
    rows, _ = run(frame, tmp_path / "first")
    assert sorted(rows) == list(range(80))
    with Client(broker.service_url) as client:
        places = [followed_to(client, name) for name in client.get_topic_partitions(topic)]
    # Spark reports a batch when it asks for the next one; before 4.2 it asks only once.
    assert places == ([9, 9] if LIMITS_TRIGGERS else [-1, -1])
    publish(broker, topic, range(80, 90))
    rows, _ = run(stream(spark, broker, topic, **options), tmp_path / "second")
    assert sorted(rows) == list(range(80 if LIMITS_TRIGGERS else 0, 90))


def test_available_now_reads_all_there_is_whatever_the_limits(spark, broker, topic, tmp_path):
    def read():
        frame = stream(spark, broker, topic, startingOffsets="earliest", maxEntriesPerTrigger="2")
        return sorted(run(frame, tmp_path)[0])

    assert read() == list(range(80))
    publish(broker, topic, range(80, 120))
    assert read() == list(range(80, 120))


def test_partitions_and_topics_that_appear_are_read(spark, broker, tmp_path):
    family = f"family-{next(_NUMBERS)}"
    publish(broker, f"{family}-a", range(0, 20, 2))

    def read():
        register(spark)
        source = spark.readStream.format("pulsar").options(
            **{"service.url": broker.service_url, "topicsPattern": f"{family}-.*"}
        )
        frame = source.option("startingOffsets", "earliest").load()
        return sorted(run(frame, tmp_path)[0])

    assert read() == list(range(0, 20, 2))
    publish(broker, f"{family}-b", range(100, 120, 2))
    assert read() == list(range(100, 120, 2))


def test_progress_tells_where_the_topic_ends(spark, broker, topic, tmp_path):
    _, progress = run(stream(spark, broker, topic, startingOffsets="earliest"), tmp_path)
    latest = json.loads(progress[-1]["sources"][0]["latestOffset"])
    latest = latest if LIMITS_TRIGGERS else latest["spans"]  # before 4.2 Spark calls it so
    assert set(latest) == {f"{topic}-partition-0", f"{topic}-partition-1"}
