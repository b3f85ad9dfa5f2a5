"""Rows of Spark: exactly-once writes, and reading and writing in one transaction.

For comparison, Spark's own Parquet source and sink process the same rows, in the JVM alone and
without a guarantee for several outputs, so that figures of different machines can be compared. The
first runs of each job warm up the JVM and are not counted. A stream's figure includes its start and
end.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from figures import Figure, Target
from measured_broker import MeasuredBroker
from spark_reading import PARTITIONS, PER_ENTRY, ROWS, TOPIC, fill, session, timed
from workload import Bench

from pybroker.demo.topics import create_partitioned

OUTPUT: Final = "persistent://public/default/spark-output"
WRITE: Final = Target(400_000, higher_is_better=True)
BOTH: Final = Target(200_000, higher_is_better=True)


def writing(bench: Bench) -> list[Figure]:
    rows = max(PARTITIONS * PER_ENTRY, bench.scaled(ROWS))
    with bench.broker("spark-writing") as broker:
        fill(broker, rows)
        create_partitioned(broker.admin_url, OUTPUT, PARTITIONS)
        spark = session()
        try:
            return measured(bench, Runs(spark, broker, bench.folder / "spark-writing", rows))
        finally:
            spark.stop()


class Runs:
    def __init__(self, spark: Any, broker: MeasuredBroker, folder: Path, rows: int) -> None:
        self._spark = spark
        self._folder = folder
        self._count = 0
        self.broker = broker
        self.rows = rows
        self._files = str(folder / "files")
        self._service = {"service.url": broker.service_url}

    def make_files(self) -> None:
        frame = self._spark.read.format("pulsar").options(**self._service, topic=TOPIC).load()
        frame.select("value").write.mode("overwrite").parquet(self._files)

    def job(self) -> None:
        rows = self._spark.read.parquet(self._files)
        writer = rows.write.format("pulsar").mode("append")
        writer.options(**self._service, topic=OUTPUT).save()

    def job_of_files(self) -> None:
        rows = self._spark.read.parquet(self._files)
        rows.write.mode("overwrite").parquet(str(self._folder / "copied"))

    def stream(self) -> None:
        writer = self._stream_of_files().writeStream.format("pulsar")
        self._run(writer.options(**self._service, topic=OUTPUT), self._checkpoint())

    def stream_of_files(self) -> None:
        writer = self._stream_of_files().writeStream.format("parquet")
        checkpoint = self._checkpoint()
        self._run(writer.option("path", f"{checkpoint}-copied"), checkpoint)

    def both(self) -> None:
        from pybroker.spark import exactly_once, register

        register(self._spark)
        checkpoint = self._checkpoint()
        source = self._spark.readStream.format("pulsar").options(**self._service, topic=TOPIC)
        frame = source.option("subscription", f"bench-{self._count}").load()
        publish = exactly_once(
            lambda batch, batch_id: {OUTPUT: batch.select("value")},
            service_url=self.broker.service_url,
            checkpoint=checkpoint,
            control_topic="spark-bench-control",
        )
        self._run(frame.select("value").writeStream.foreachBatch(publish), checkpoint)

    def _stream_of_files(self) -> Any:
        from pybroker.spark import register

        register(self._spark)
        return self._spark.readStream.schema("value binary").parquet(self._files)

    def _checkpoint(self) -> str:
        self._count += 1
        return str(self._folder / f"checkpoint-{self._count}")

    def _run(self, writer: Any, checkpoint: str) -> None:
        named = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        named.start().awaitTermination()


def measured(bench: Bench, runs: Runs) -> list[Figure]:
    runs.make_files()
    wanted: tuple[tuple[str, Callable[[], None], Target | None], ...] = (
        ("df.write", runs.job, WRITE),
        ("writeStream", runs.stream, WRITE),
        ("foreachBatch exactly_once, read and written", runs.both, BOTH),
        ("Spark's own Parquet source and sink, a job", runs.job_of_files, None),
        ("Spark's own Parquet source and sink, a stream", runs.stream_of_files, None),
    )
    figures = []
    for name, run, target in wanted:
        wall, cpu = timed(bench, runs, run)
        figures.append(Figure(f"{name}, 100 B", "rows/s", wall, target))
        figures.append(Figure(f"{name}: for a second of CPU", "rows", cpu))
    return figures
