"""A real Spark, local[2], with a broker process: behaviour that the fakes cannot show."""

import json
import time
import urllib.request
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pybroker.client import Client, InitialPosition, Outgoing, encode_batch
from pybroker.demo.topics import create_partitioned, read_all
from pybroker.spark import Marker, Step, exactly_once
from pybroker.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.spark

NUMBERS = 600
PER_ENTRY = 20
ENTRIES_PER_BATCH = "10"


class Pipeline:
    """Doubles the numbers 0 to 599 of a topic with two partitions."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, name: str, path: Path):
        self.spark = spark
        self.broker = broker
        self.source, self.doubled, self.control = (
            f"persistent://public/default/{name}-{suffix}" for suffix in ("in", "out", "control")
        )
        self.checkpoint = str(path / "checkpoint")
        create_partitioned(broker.admin_url, self.source, 2)
        with Client(broker.service_url) as client:
            for topic in (self.doubled, self.control):
                client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest)
            for partition, topic in enumerate(client.get_topic_partitions(self.source)):
                producer = client.create_producer(topic)
                values = [Outgoing(b"%d" % n) for n in range(partition, NUMBERS, 2)]
                for first in range(0, len(values), PER_ENTRY):
                    producer.send_batch(encode_batch(values[first : first + PER_ENTRY]))

    def write(self, batch: DataFrame, batch_id: int) -> dict[str, DataFrame]:
        number = F.col("value").cast("string").cast("long")
        return {self.doubled: batch.select((number * 2).cast("string").alias("value"))}

    def run(
        self,
        write=None,
        mode="auto",
        on_step=lambda step, work: None,
        checkpoint_location=None,
        shape=lambda rows: rows,
    ) -> None:
        source = self.spark.readStream.format("pulsar").options(
            service_url=self.broker.service_url,
            topic=self.source,
            subscription="doubler",
            max_entries_per_trigger=ENTRIES_PER_BATCH,
        )
        process = exactly_once(
            write or self.write,
            service_url=self.broker.service_url,
            checkpoint=self.checkpoint,
            control_topic=self.control,
            mode=mode,
            on_step=on_step,
        )
        stream = shape(source.load()).writeStream.foreachBatch(process)
        location = checkpoint_location or self.checkpoint
        stream = stream.option("checkpointLocation", location)
        stream.trigger(availableNow=True).start().awaitTermination()

    def published(self) -> list[int]:
        messages = read_all(self.broker.service_url, [self.doubled])
        return sorted(int(message.data()) for message in messages)

    def markers(self) -> list[Marker]:
        messages = read_all(self.broker.service_url, [self.control])
        markers = [Marker.from_bytes(message.data()) for message in messages]
        return [marker for marker in markers if not marker.is_opening]


EXPECTED = [2 * number for number in range(NUMBERS)]


@pytest.fixture
def pipeline(spark, broker, request, tmp_path) -> Pipeline:
    return Pipeline(spark, broker, request.node.originalname.replace("_", "-")[:40], tmp_path)


@pytest.mark.parametrize("mode", ["auto", "driver", "executor"])
def test_each_message_once_though_the_broker_dies_before_a_commit(spark, broker, tmp_path, mode):
    pipeline = Pipeline(spark, broker, f"killed-{mode}", tmp_path)
    deaths = []

    def on_step(step, work):
        if step is Step.MARKED and work.batch_id == 1 and not deaths:
            deaths.append(step)
            broker.kill()
            broker.start()

    pipeline.run(mode=mode, on_step=on_step)
    assert deaths
    assert pipeline.published() == EXPECTED


def test_batches_follow_each_other_without_a_gap(pipeline):
    pipeline.run()
    reached = {}
    for marker in pipeline.markers():
        for name, span in marker.progress.items():
            assert reached.get(name, span.after) == span.after
            reached[name] = span.to
    assert [marker.batch_id for marker in pipeline.markers()] == [0, 1, 2]


def test_a_query_without_its_checkpoint_goes_on_at_the_cursor(pipeline, tmp_path):
    class Enough(Exception):
        pass

    def fail_after_the_first(step, work):
        if work.batch_id == 1:
            raise Enough

    with pytest.raises(StreamingQueryException):
        pipeline.run(on_step=fail_after_the_first)
    pipeline.checkpoint = str(tmp_path / "another")
    pipeline.run()
    assert pipeline.published() == EXPECTED
    assert len({marker.query_id for marker in pipeline.markers()}) == 2


def test_a_batch_that_fails_leaves_nothing_and_runs_again(pipeline):
    def fail(batch, batch_id):
        raise ZeroDivisionError

    with pytest.raises(StreamingQueryException):
        pipeline.run(write=fail)
    assert pipeline.published() == []
    pipeline.run()
    assert pipeline.published() == EXPECTED


def test_another_location_than_the_querys_checkpoint_is_refused(pipeline, tmp_path):
    with pytest.raises(StreamingQueryException, match="the location set in the option"):
        pipeline.run(checkpoint_location=str(tmp_path / "elsewhere"))
    assert pipeline.published() == []


def test_a_stateful_query_that_dies_behind_every_commit_keeps_its_state(pipeline):
    """Spark runs each batch again, the first with a new initial offset. The batch must be skipped
    but still update the state; otherwise later rows count as new.
    """

    class Death(Exception):
        pass

    died = set()

    def die(step, work):
        if step is Step.COMMITTED and work.batch_id not in died:
            died.add(work.batch_id)
            raise Death

    def distinct(rows):
        thirds = (F.col("value").cast("string").cast("long") % 200).cast("string")
        return rows.select(thirds.alias("value")).dropDuplicates(["value"])

    def write(batch, batch_id):
        return {pipeline.doubled: batch} if batch_id else {}

    for _ in range(3):
        with pytest.raises(StreamingQueryException, match="Death"):
            pipeline.run(write=write, on_step=die, shape=distinct)
    pipeline.run(write=write, on_step=die, shape=distinct)
    assert [marker.batch_id for marker in pipeline.markers()] == [0, 1, 2]
    # The first batch has all 200 values and was not published; later batches have no new ones.
    assert pipeline.published() == []


def test_a_query_that_has_ended_leaves_no_consumer(pipeline, broker):
    pipeline.run()
    topic = pipeline.source.replace("://", "/") + "-partition-0"

    def consumers():
        with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/{topic}/stats") as answer:
            return json.load(answer)["subscriptions"]["doubler"]["consumers"]

    give_up_at = time.monotonic() + 30
    while consumers() and time.monotonic() < give_up_at:
        pass
    assert consumers() == []


def test_a_sorted_frame_is_published_in_its_order(pipeline):
    def write(batch, batch_id):
        numbers = batch.select(F.col("value").cast("string").cast("long").alias("n"))
        ranges = numbers.repartitionByRange(7, "n").sortWithinPartitions("n")
        return {pipeline.doubled: ranges.select(F.col("n").cast("string").alias("value"))}

    pipeline.run(write=write)
    messages = read_all(pipeline.broker.service_url, [pipeline.doubled])
    published = [int(message.data()) for message in messages]
    for first in range(0, NUMBERS, 200):  # a batch
        assert published[first : first + 200] == sorted(published[first : first + 200])
    assert sorted(published) == list(range(NUMBERS))
