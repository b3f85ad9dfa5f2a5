"""A Spark driver of the demo: `python -m pybroker.demo.driver SETTINGS`, where SETTINGS is JSON.

It runs one pipeline over everything in its topic, then exits. It can also run the usual simple
sink, which publishes before Spark records the batch.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pybroker.client import Client, encode_batch
from pybroker.demo import flights, payments
from pybroker.demo.crashes import CrashPlan
from pybroker.spark import Step, Work, exactly_once, register

_SPARK_CONFIG: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A driver lives only for seconds here, so the JVM's first compiler is fastest.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    # Batches are small: one job with fixed stages is faster than adaptive planning.
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # Drivers die soon: cleaning up broadcasts and memory stores is not worthwhile.
    "spark.cleaner.referenceTracking": "false",
}
PIPELINES: Final = {
    "payments": (payments.TRANSFERS, payments.ledger, payments.LEDGER_CONTROL),
    "flights": (flights.FLIGHTS, flights.aggregate, flights.FLIGHTS_CONTROL),
}
PLAIN_SENT: Final = "plain-sent"


@dataclass(frozen=True, slots=True)
class Settings:
    pipeline: str
    service_url: str
    directory: str
    checkpoint: str
    entries_per_trigger: int
    crash_plan: str = ""
    mode: str = "driver"
    transaction_timeout_ms: int = 120_000
    patience_s: float = 180.0
    with_plain_sink: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def main(settings: Settings) -> None:
    directory = Path(settings.directory)
    plan = CrashPlan(settings.crash_plan, directory / "broker.pid", directory / "go-on")
    spark = _session(directory)
    queries = [_exactly_once_query(spark, settings, plan)]
    if settings.with_plain_sink:
        queries.append(_plain_query(spark, settings, plan))
    for query in queries:
        query.awaitTermination()


def _session(directory: Path) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("pybroker demo")
    for name, value in _SPARK_CONFIG.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _exactly_once_query(spark: SparkSession, settings: Settings, plan: CrashPlan) -> StreamingQuery:
    topic, write, control_topic = PIPELINES[settings.pipeline]

    def on_step(step: Step, work: Work) -> None:
        print(f"batch {work.batch_id}: {step}", flush=True)
        plan.reach(step)

    process = exactly_once(
        write,
        service_url=settings.service_url,
        checkpoint=settings.checkpoint,
        control_topic=control_topic,
        mode=settings.mode,
        transaction_timeout_ms=settings.transaction_timeout_ms,
        patience_s=settings.patience_s,
        on_step=on_step,
    )
    return _start(spark, settings, topic, "exactly-once", settings.checkpoint, process)


def _plain_query(spark: SparkSession, settings: Settings, plan: CrashPlan) -> StreamingQuery:
    """An at-least-once sink: a batch whose driver dies before Spark's commit is sent again."""

    def send(batch: DataFrame, batch_id: int) -> None:
        debits = payments.plain_debits(batch.collect())
        client = Client(settings.service_url)
        try:
            producer = client.create_producer(payments.PLAIN_DEBITS)
            producer.send_batch(encode_batch(debits))
        finally:
            client.close()
        plan.reach(PLAIN_SENT)

    checkpoint = f"{settings.directory}/plain-checkpoint"
    return _start(spark, settings, payments.TRANSFERS, "at-least-once", checkpoint, send)


def _start(
    spark: SparkSession,
    settings: Settings,
    topic: str,
    subscription: str,
    checkpoint: str,
    process: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    register(spark)  # see `register`: every query needs it
    source = (
        spark.readStream.format("pulsar")
        .schema(
            "value binary, __eventTime timestamp"
        )  # columns that are not listed are not created
        .option("service.url", settings.service_url)
        .option("topic", topic)
        .option("subscription", subscription)
        .option("maxEntriesPerTrigger", str(settings.entries_per_trigger))
    )
    return (
        source.load()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])))
