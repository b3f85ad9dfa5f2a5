"""The reports of a query, with a real Spark."""

import itertools
import json

import pytest
from pyspark.sql import functions as F

from pybroker.client import Client, InitialPosition, MessageId, encode_batch
from pybroker.demo.topics import create_partitioned
from pybroker.spark import Marker, exactly_once, progress, register
from pybroker.spark.compat import LIMITS_TRIGGERS

pytestmark = pytest.mark.spark

_NUMBERS = itertools.count()


@pytest.fixture
def topic(broker):
    """A topic with two partitions, each with 10 entries of 10 messages of 50 bytes."""
    topic = f"persistent://public/default/watched-{next(_NUMBERS)}"
    create_partitioned(broker.admin_url, topic, 2)
    with Client(broker.service_url) as client:
        for name in client.get_topic_partitions(topic):
            client.subscribe(name, "keep", initial_position=InitialPosition.Earliest)
            producer = client.create_producer(name)
            for _ in range(10):
                producer.send_batch(encode_batch([bytes(50)] * 10))
    return topic


@pytest.fixture
def said(spark, broker):
    """`begin` starts a listener and returns the lines of all listeners."""
    listeners, lines = [], []

    def begin(control_topic=None):
        listeners.append(progress.show(spark, broker.service_url, control_topic, lines.append))
        return lines

    yield begin
    for listener in listeners:
        spark.streams.removeListener(listener)


def source(spark, broker, topic, **options):
    register(spark)
    named = {"service.url": broker.service_url, "topic": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("pulsar").options(**named, **options).load()


def run(spark, writer):
    """Run a query; returns its progress once all listeners have received it."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return [each for each in query.recentProgress if each["numInputRows"]]


def test_progress_tells_the_backlog_of_each_partition(spark, broker, topic, tmp_path):
    frame = source(spark, broker, topic, maxEntriesPerTrigger="8")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    found = [
        list(json.loads(each["sources"][0]["latestOffset"]).values()) for each in run(spark, writer)
    ]
    if not LIMITS_TRIGGERS:
        return  # Spark does not ask the source.
    assert [[each["backlogEntries"] for each in each] for each in found] == [[6, 6], [2, 2], [0, 0]]
    assert [each["backlogMessages"] for each in found[0]] == [60, 60]
    assert [each["backlogBytes"] for each in found[0]] == [3000, 3000]
    assert [[each["backlogAgeMs"] > 0 for each in each] for each in found] == [
        [True, True],
        [True, True],
        [False, False],
    ]
    assert {each["last"].partition(":")[2] for each in found[0]} == {"9"}


def test_a_batch_of_a_sink_is_a_line_with_its_transaction(spark, broker, topic, tmp_path, said):
    lines = said()
    output = f"{topic}-out"
    frame = source(spark, broker, topic).select("value")
    writer = frame.writeStream.format("pulsar").queryName("copier")
    writer = writer.option("service.url", broker.service_url).option("topic", output)
    run(spark, writer.option("checkpointLocation", str(tmp_path)))
    [line] = lines
    assert line.startswith("copier batch 0: 200 rows")
    assert "; transaction (" in line
    if LIMITS_TRIGGERS:
        assert "~10.0 kB" in line and "; caught up;" in line


def test_a_batch_of_exactly_once_is_a_line_with_its_transaction(
    spark, broker, topic, tmp_path, said
):
    control = f"{topic}-control"
    lines = said(control)
    checkpoint = str(tmp_path)
    publish = exactly_once(
        lambda batch, batch_id: {f"{topic}-out": batch.select(F.col("value"))},
        service_url=broker.service_url,
        checkpoint=checkpoint,
        control_topic=control,
    )
    register(spark)
    named = {"service.url": broker.service_url, "topic": topic, "subscription": "watched"}
    frame = spark.readStream.format("pulsar").options(**named).load()
    writer = frame.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoint)
    run(spark, writer)
    with Client(broker.service_url) as client:
        reader = client.create_reader(control, MessageId.earliest)
        markers = [Marker.from_bytes(reader.read_next(5000).data()) for _ in range(2)]
    [marker] = [each for each in markers if not each.is_opening]
    assert [line.endswith(f"; transaction {marker.txn_id}") for line in lines] == [True]
