"""A PySpark job with the unmodified pulsar-spark connector, and the Spark that it needs.

connector_job.py JARS TOPIC FOLDER OPTIONS: uses each mode of the connector; prints the results as
JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

JAVA_OPTIONS = "-Dio.netty.tryReflectionSetAccessible=true"


class Job:
    def __init__(self, spark: SparkSession, topic: str, folder: Path, options: Any) -> None:
        self.spark, self.topic, self.folder, self.options = spark, topic, folder, options

    def read(self, topic: str) -> list[list[str]]:
        frame = self.spark.read.format("pulsar").options(**self.options).option("topic", topic)
        return sorted(_rows(frame.load()))

    def stream(self, name: str, **options: str) -> list[list[str]]:
        found: list[list[str]] = []
        source = self.spark.readStream.format("pulsar").options(**self.options, **options)
        frame = source.option("topic", self.topic).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(_rows(batch)))
        query = writer.option("checkpointLocation", str(self.folder / name)).start()
        query.processAllAvailable()
        query.stop()
        return sorted(found)

    def write(self, topic: str) -> None:
        """Write with a column of topics: the connector's topic option does not work with this
        Spark.
        """
        columns = ("string(id) as value", "'k' as __key", f"'{topic}' as __topic")
        frame = self.spark.range(100).selectExpr(*columns)
        frame.write.format("pulsar").options(**self.options).save()

    def write_stream(self, topic: str) -> None:
        source = self.spark.readStream.format("pulsar").options(**self.options)
        frame = source.option("topic", self.topic).option("startingOffsets", "earliest").load()
        rows = frame.selectExpr("value", "__key", f"'{topic}' as __topic")
        writer = rows.writeStream.format("pulsar").options(**self.options)
        query = writer.option("checkpointLocation", str(self.folder / "written")).start()
        query.processAllAvailable()
        query.stop()


def _rows(frame: DataFrame) -> list[list[str]]:
    chosen = frame.selectExpr("string(value)", "string(__key)", "__topic")
    return [list(row) for row in chosen.collect()]


def main(jars: str, topic: str, folder: str, options: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.jars", jars)
    spark = builder.config("spark.driver.extraJavaOptions", JAVA_OPTIONS).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    job = Job(spark, topic, Path(folder), json.loads(options))
    seen: dict[str, Any] = {"read": job.read(topic), "stream": job.stream("all")}
    seen["predefined"] = job.stream("predefined", predefinedSubscription="mine")
    job.write(f"{topic}-written")
    seen["written"] = job.read(f"{topic}-written")
    job.write_stream(f"{topic}-copied")
    seen["copied"] = job.read(f"{topic}-copied")
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
