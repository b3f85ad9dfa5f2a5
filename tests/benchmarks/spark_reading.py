"""A row of Spark: reading a topic as a frame and as a stream, compared with the cost of Spark
itself.

Everything runs in local[2]. A Python source that reads nothing (spark_ceiling) shows the upper
limit, the pulsar-spark connector the cost in Java, and Spark's own Parquet source, in the JVM
alone, makes figures of different machines comparable. Compared jobs alternate. Rows per second of
CPU count the whole pipeline: the JVM, its Python workers and the broker. The first runs of each job
warm up the JVM, which compiles for a long time, and are not counted.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from figures import Figure, Target
from measured_broker import MeasuredBroker
from spark_connector import connector
from workload import Bench

from pybroker.client import Client, InitialPosition, encode_batch
from pybroker.demo.topics import create_partitioned

ROWS = 1_000_000
PARTITIONS = 4
PER_ENTRY = 1000
WARM_RUNS = 3
# A stream's planner ends after its query; its CPU must count for the same run.
SETTLE_S = 1.0
TOPIC = "persistent://public/default/spark"


def reading(bench: Bench) -> list[Figure]:
    rows = max(PARTITIONS * PER_ENTRY, bench.scaled(ROWS))
    with bench.broker("spark-reading") as broker:
        fill(broker, rows)
        spark = session()
        try:
            return measured(bench, Runs(spark, broker, bench.folder / "spark", rows))
        finally:
            spark.stop()


def fill(broker: MeasuredBroker, rows: int) -> None:
    create_partitioned(broker.admin_url, TOPIC, PARTITIONS)
    batch = encode_batch([bytes(100)] * PER_ENTRY)
    with Client(broker.service_url) as client:
        client.subscribe(TOPIC, "keep", initial_position=InitialPosition.Earliest)
        for partition in client.get_topic_partitions(TOPIC):
            producer = client.create_producer(partition)
            for _ in range(rows // PARTITIONS // PER_ENTRY):
                producer.send_batch(batch)


def session() -> Any:
    from pyspark.sql import SparkSession

    from pybroker.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark


class Runs:
    def __init__(self, spark: Any, broker: MeasuredBroker, folder: Path, rows: int) -> None:
        self._spark = spark
        self._folder = folder
        self._count = 0
        self.broker = broker
        self.rows = rows
        self._options = {"service.url": broker.service_url, "topic": TOPIC}

    def frame(self) -> Any:
        return self._spark.read.format("pulsar").options(**self._options).load()

    def as_batch(self) -> None:
        self.frame().write.format("noop").mode("overwrite").save()

    def as_stream(self) -> None:
        from pybroker.spark import register

        register(self._spark)
        source = self._spark.readStream.format("pulsar").options(**self._options)
        self._run(source.option("startingOffsets", "earliest").load())

    def ceiling(self) -> None:
        self._ready(self._spark.read).write.format("noop").mode("overwrite").save()

    def stream_ceiling(self) -> None:
        self._run(self._ready(self._spark.readStream))

    def _ready(self, reader: Any) -> Any:
        import spark_ceiling

        self._spark.dataSource.register(spark_ceiling.Ready)
        options = {"rows": self.rows, "parts": PARTITIONS}
        return reader.format(spark_ceiling.FORMAT).options(**options).load()

    def _run(self, frame: Any) -> None:
        self._count += 1
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / f"checkpoint-{self._count}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def write_files(self) -> None:
        self.frame().write.mode("overwrite").parquet(str(self._folder / "files"))

    def as_files(self) -> None:
        files = self._spark.read.parquet(str(self._folder / "files"))
        files.write.format("noop").mode("overwrite").save()


def measured(bench: Bench, runs: Runs) -> list[Figure]:
    runs.write_files()
    theirs = {"service.url": runs.broker.service_url, "admin.url": runs.broker.admin_url}
    with connector(bench.folder, theirs | {"topic": TOPIC}) as java:
        groups: Sequence[dict[str, Callable[[], None]]] = (
            {
                "spark.read": runs.as_batch,
                "the ceiling of spark.read": runs.ceiling,
                "pulsar-spark's spark.read": java.as_batch,
            },
            {
                "spark.readStream": runs.as_stream,
                "the ceiling of spark.readStream": runs.stream_ceiling,
                "pulsar-spark's spark.readStream": java.as_stream,
            },
            {"Spark's own Parquet source": runs.as_files},
        )
        return [figure for group in groups for figure in by_turns(bench, runs, group)]


def by_turns(bench: Bench, runs: Runs, compared: dict[str, Callable[[], None]]) -> list[Figure]:
    """Jobs alternate, so that other load on the machine affects all of them."""
    wall: dict[str, list[float]] = {name: [] for name in compared}
    cpu: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(WARM_RUNS + bench.runs):
        for name, run in compared.items():
            rates = one_run(runs, run)
            if turn >= WARM_RUNS:
                wall[name].append(rates[0])
                cpu[name].append(rates[1])
    figures = []
    for name, run in compared.items():
        is_ours = run in (runs.as_batch, runs.as_stream)
        target = Target(400_000, higher_is_better=True) if is_ours else None
        figures.append(Figure(f"{name}, 100 B", "rows/s", wall[name], target))
        figures.append(Figure(f"{name}, 100 B: for a second of CPU", "rows", cpu[name]))
    return figures


def timed(bench: Bench, runs: Any, run: Callable[[], None]) -> tuple[list[float], list[float]]:
    for _ in range(WARM_RUNS):
        run()
    rates = [one_run(runs, run) for _ in range(bench.runs)]
    return [wall for wall, _ in rates], [cpu for _, cpu in rates]


def one_run(runs: Any, run: Callable[[], None]) -> tuple[float, float]:
    """Rows per second, and rows per second of CPU."""
    before, started = cpu_s(runs.broker), time.perf_counter()
    run()
    wall_s = time.perf_counter() - started
    time.sleep(SETTLE_S)
    return runs.rows / wall_s, runs.rows / (cpu_s(runs.broker) - before)


def cpu_s(broker: MeasuredBroker) -> float:
    """The CPU of the broker, of this process and of all its descendants, ended ones included."""
    ticks: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # The process has ended meanwhile.
            ticks[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total, todo = 0, {os.getpid(), broker.pid}
    while todo:
        total += sum(ticks[pid][1] for pid in todo if pid in ticks)
        todo = {pid for pid, (parent, _) in ticks.items() if parent in todo} - {broker.pid}
    return total / os.sysconf("SC_CLK_TCK")
