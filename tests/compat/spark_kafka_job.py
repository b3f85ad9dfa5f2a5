"""Spark jobs with Spark's own Kafka source and sink.

spark_kafka_job.py JARS BOOTSTRAP SERVICE_URL FOLDER KIND:
    table    reads a topic as a table, appends it to another topic, and prints the rows as JSON
    copy     copies a topic to another one, as a stream, until it is killed
    once     does the same with pybroker.spark.exactly_once
"""

import json
import sys
from contextlib import suppress
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

INPUT = "spark-in"
OUTPUT = "spark-out"
MOST_STARTS = 5


def session(jars: str) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": jars,
    }
    builder = SparkSession.builder.master("local[2]").appName("kafka")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def table(spark: SparkSession, kafka: dict[str, str]) -> None:
    reader = spark.read.format("kafka").options(**kafka, includeHeaders="true")
    frame = reader.option("subscribe", INPUT).load().cache()
    columns = ("string(key) as key", "string(value) as value", "partition", "offset", "headers")
    rows = frame.selectExpr(*columns).orderBy("partition", "offset").collect()
    frame.select("key", "value", "headers").write.format("kafka").options(
        **kafka, includeHeaders="true", topic=OUTPUT
    ).save()
    print(json.dumps([row.asDict(recursive=True) for row in rows], default=bytes.decode))


def stream(
    spark: SparkSession, kafka: dict[str, str], service_url: str, folder: Path, once: bool
) -> None:
    reader = spark.readStream.format("kafka").options(**kafka, subscribe=INPUT)
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    rows = reader.options(**limits).load().select("key", "value")
    checkpoint = str(folder / "checkpoint")
    if once:
        from pybroker.spark import exactly_once

        def write(batch: DataFrame, batch_id: int) -> dict[str, DataFrame]:
            return {OUTPUT: batch.selectExpr("string(key) as __key", "value")}

        publish = exactly_once(
            write, service_url=service_url, checkpoint=checkpoint, control_topic="spark-control"
        )
        writer = rows.writeStream.foreachBatch(publish)
    else:
        writer = rows.writeStream.format("kafka").options(**kafka, topic=OUTPUT)
    for _ in range(MOST_STARTS):
        # Spark's source fails when a restarted query repeats a batch: its metrics refer to offsets
        # that only a batch before it in the same run leaves.
        with suppress(StreamingQueryException):
            writer.option("checkpointLocation", checkpoint).start().awaitTermination()


def main(jars: str, bootstrap: str, service_url: str, folder: str, kind: str) -> None:
    spark = session(jars)
    spark.sparkContext.setLogLevel("ERROR")
    kafka = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"}
    if kind == "table":
        table(spark, kafka)
        spark.stop()
    else:
        stream(spark, kafka, service_url, Path(folder), once=kind == "once")


if __name__ == "__main__":
    main(*sys.argv[1:])
