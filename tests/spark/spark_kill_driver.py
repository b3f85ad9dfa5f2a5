"""The driver of a kill round. Arguments: master, kind (sink, foreach), source (files, pulsar), url,
folder.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from spark_kill_points import FOLDER, KillablePulsar, noticed, reached

from pybroker.spark import exactly_once, register

OUTPUT = "persistent://public/default/killed-output"
INPUT = "persistent://public/default/killed-input"


def session(master: str) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        "spark.task.maxFailures": "8",
        "spark.speculation": "true",
        "spark.speculation.multiplier": "2",
        "spark.speculation.minTaskRuntime": "1s",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        f"spark.executorEnv.{FOLDER}": os.environ[FOLDER],
    }
    builder = SparkSession.builder.master(master).appName("kill rounds")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read(spark: SparkSession, source: str, url: str, folder: Path) -> DataFrame:
    if source == "files":
        text = spark.readStream.format("text").option("maxFilesPerTrigger", "1")
        return text.load(str(folder / "input"))
    options = {"service.url": url, "topic": INPUT, "subscription": "killed"}
    stream = spark.readStream.format("pulsar").options(**options)
    return stream.option("maxEntriesPerTrigger", "2").load().select("value")


def main(master: str, kind: str, source: str, url: str, folder: Path) -> None:
    spark = session(master)
    spark.sparkContext.setLogLevel("WARN")
    checkpoint = str(folder / "checkpoint")
    if kind == "sink" or source == "pulsar":
        register(spark)
    rows = read(spark, source, url, folder)
    if kind == "sink":
        spark.dataSource.register(KillablePulsar)
        options = {"service.url": url, "topic": OUTPUT, "maxDriverBytesPerTask": "20000"}
        writer = rows.repartition(3).writeStream.format("pulsar").options(**options)
    else:

        def write(batch: DataFrame, batch_id: int) -> dict[str, DataFrame]:
            return {OUTPUT: batch.repartition(3).mapInArrow(noticed, batch.schema)}

        publish = exactly_once(
            write,
            service_url=url,
            checkpoint=checkpoint,
            control_topic="killed-control",
            mode="executor",
            on_step=lambda step, work: reached(step.value),
        )
        writer = rows.writeStream.foreachBatch(publish)
    query = writer.option("checkpointLocation", checkpoint).start()
    java = spark.sparkContext._gateway.proc.pid
    (folder / "driver.pid").write_text(f"{java} {os.getpid()}")
    query.awaitTermination()


if __name__ == "__main__":
    master, kind, source, url, folder = sys.argv[1:]
    main(master, kind, source, url, Path(folder))
