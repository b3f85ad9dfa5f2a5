"""Defaults that need no configuration: Python, threads, number of tasks; and the limits of SQL."""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException

from pybroker.base.errors import NotAllowed
from pybroker.client import Client
from pybroker.spark import datasource, register
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadAllAvailable
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.spans import Reading, read_spans
from pybroker.spark.reading.stream import PulsarStreamReader

_NUMBERS = itertools.count()


@pytest.fixture
def topic(broker):
    """A topic with 100 messages in 100 entries."""
    name = f"persistent://public/default/ease-{next(_NUMBERS)}"
    with Client(broker.service_url) as client, client.create_producer(name) as producer:
        for number in range(100):
            producer.send(b"%d" % number)
    return name


def read(spark, broker, topic):
    reader = spark.read.format("pulsar").option("service.url", broker.service_url)
    return reader.option("topic", topic).load()


@pytest.mark.spark
def test_tasks_run_on_the_drivers_python_where_nobody_chose_another(
    spark, broker, topic, monkeypatch
):
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    register(spark)
    assert spark.sparkContext.pythonExec == sys.executable
    assert read(spark, broker, topic).count() == 100


@pytest.mark.spark
def test_a_python_that_was_chosen_stays(spark, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python3")
    datasource._start_this_python(spark)
    assert spark.sparkContext.pythonExec == "/nowhere/python3"


@pytest.mark.spark
def test_a_query_and_a_job_that_a_thread_starts_find_the_sink(spark, broker, topic, tmp_path):
    def copy(name):
        stream = spark.readStream.format("pulsar").option("service.url", broker.service_url)
        stream = stream.option("topic", topic).option("startingOffsets", "earliest").load()
        writer = stream.select("value").writeStream.format("pulsar")
        writer = writer.option("service.url", broker.service_url).option("topic", f"{topic}-{name}")
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        writer.trigger(availableNow=True).start().awaitTermination()

    def save():
        writer = read(spark, broker, topic).select("value").write.format("pulsar").mode("append")
        writer.option("service.url", broker.service_url).option("topic", f"{topic}-saved").save()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(copy, "copied").result()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(save).result()
    for name in ("copied", "saved"):
        assert read(spark, broker, f"{topic}-{name}").count() == 100


@pytest.mark.spark
def test_a_table_whose_queries_would_not_know_its_options_is_refused(spark, broker, topic):
    options = f"OPTIONS (`service.url` '{broker.service_url}', topic '{topic}')"
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE refused USING pulsar {options}")
    spark.sql(f"CREATE TEMPORARY VIEW taken USING pulsar {options}")
    assert spark.sql("SELECT count(*) FROM taken").first()[0] == 100
    spark.sql("DROP VIEW taken")


@pytest.mark.spark
def test_a_save_without_a_mode_appends_and_other_modes_are_refused(spark, broker, topic):
    rows = spark.sql("select 'more' value")

    def writer():
        options = {"service.url": broker.service_url, "topic": topic}
        return rows.write.format("pulsar").options(**options)

    writer().save()
    writer().mode("append").save()
    rows.write.options(**{"service.url": broker.service_url}).save(format="pulsar", topic=topic)
    for mode in ("ignore", "error", "overwrite"):
        with pytest.raises(NotAllowed, match=f"the mode '{mode}' is not possible"):
            writer().save(mode=mode)
    assert read(spark, broker, topic).count() == 103


@pytest.mark.spark
def test_the_mode_of_another_format_is_as_it_was(spark, tmp_path):
    rows, place = spark.sql("select 'more' value"), str(tmp_path / "rows")
    rows.write.parquet(place)
    with pytest.raises(AnalysisException, match="ALREADY_EXISTS"):
        rows.write.format("parquet").save(place)
    rows.write.mode("ignore").format("parquet").save(place)
    assert spark.read.parquet(place).count() == 1


@pytest.mark.spark
def test_a_table_that_nobody_could_read_is_refused_before_it_is_made(
    spark, broker, topic, tmp_path
):
    options = {"service.url": broker.service_url, "topic": topic}
    rows = spark.sql("select 'more' value")
    stream = spark.readStream.schema("value string").parquet(str(tmp_path))
    batch = rows.write.format("pulsar").options(**options)
    tables = rows.writeTo("unreadable").using("pulsar").options(**options)
    for refused, instead in (
        (lambda: batch.saveAsTable("unreadable"), "use save"),
        (lambda: batch.mode("append").saveAsTable("unreadable"), "use save"),
        (tables.create, r"use df\.write"),
        (lambda: stream.writeStream.format("pulsar").toTable("unreadable"), "use start"),
    ):
        with pytest.raises(NotAllowed, match=instead):
            refused()
    assert not spark.catalog.tableExists("unreadable")
    assert read(spark, broker, topic).count() == 100


@pytest.mark.parametrize(("least", "tasks"), [(1, 1), (3, 3), (1000, 6)])
def test_a_stream_has_as_many_tasks_as_it_is_asked_for_while_there_are_entries(
    broker, topic, least, tasks
):
    """A range has at least 16 entries."""
    given = {"service.url": broker.service_url, "topic": topic, "startingOffsets": "earliest"}
    given |= {"minPartitions": str(least), "maxEntriesPerTrigger": "90"}
    reader = PulsarStreamReader(chosen(given, Mode.READ_STREAM), Shape.of(default_schema()))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    planned = reader.partitions(start, end)
    reading = Reading(Endpoint(broker.service_url), Shape.of(default_schema()))
    rows = [
        int(row["value"])
        for task in planned
        for batch in read_spans(reading, task.works)
        for row in batch.to_pylist()
    ]
    assert rows == list(range(90))
    assert len(planned) == tasks
    assert reader.partitions(end, reader.latestOffset(end, ReadAllAvailable()))
    reader.stop()


def test_no_task_of_a_stream_reads_more_records_than_it_may(broker, topic):
    given = {"service.url": broker.service_url, "topic": topic, "startingOffsets": "earliest"}
    given |= {"maxRecordsPerPartition": "1"}
    reader = PulsarStreamReader(chosen(given, Mode.READ_STREAM), Shape.of(default_schema()))
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert len(planned) == 100
    reader.stop()
