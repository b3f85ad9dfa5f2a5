"""The driver of a backlog's run. Arguments: master, kind (sink, foreach, batch), service URL,
folder, and rows per trigger (0: the default).

Only the driver's memory is configured.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pybroker.spark import exactly_once, progress, register

INPUT = "persistent://public/default/backlog-input"
OUTPUT = "persistent://public/default/backlog-output"


def session(master: str) -> SparkSession:
    settings = {
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    builder = SparkSession.builder.master(master).appName("backlog")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def copy_topic(spark: SparkSession, url: str) -> None:
    options = {"service.url": url}
    rows = spark.read.format("pulsar").options(**options).option("topic", INPUT).load()
    writer = rows.select("value").write.format("pulsar").mode("append").options(**options)
    writer.option("topic", OUTPUT).save()


def follow_topic(spark: SparkSession, kind: str, url: str, folder: Path, limit: int) -> None:
    checkpoint = str(folder / "checkpoint")
    source = spark.readStream.format("pulsar").option("service.url", url).option("topic", INPUT)
    if limit:
        source = source.option("maxRowsPerTrigger", str(limit))
    if kind == "sink":
        rows = source.option("startingOffsets", "earliest").load().select("value")
        writer = rows.writeStream.format("pulsar")
        writer = writer.option("service.url", url).option("topic", OUTPUT)
    else:

        def write(batch: DataFrame, batch_id: int) -> dict[str, DataFrame]:
            return {OUTPUT: batch.select("value")}

        publish = exactly_once(
            write, service_url=url, checkpoint=checkpoint, control_topic="backlog-control"
        )
        rows = source.option("subscription", "backlog").load()
        writer = rows.writeStream.foreachBatch(publish)
    query = writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    rows_of_batches = [each["numInputRows"] for each in query.recentProgress]
    (folder / "batches.json").write_text(json.dumps([rows for rows in rows_of_batches if rows]))


def main(master: str, kind: str, url: str, folder: Path, limit: int) -> None:
    spark = session(master)
    spark.sparkContext.setLogLevel("WARN")
    register(spark)
    progress.show(spark)
    if kind == "batch":
        copy_topic(spark, url)
    else:
        follow_topic(spark, kind, url, folder, limit)
    spark.stop()


if __name__ == "__main__":
    master, kind, url, folder, limit = sys.argv[1:]
    main(master, kind, url, Path(folder), int(limit))
