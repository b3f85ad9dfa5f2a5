"""spark_connector_job.py JARS FOLDER OPTIONS: reads with the pulsar-spark connector.

Each input line, `read` or `stream`, starts a run; an output line reports its end.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def session(jars: str) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.jars", jars)
    builder = builder.config("spark.driver.host", "127.0.0.1")
    java = "-Dio.netty.tryReflectionSetAccessible=true"
    spark = builder.config("spark.driver.extraJavaOptions", java).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def stream(frame: Any, checkpoint: Path) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def main(jars: str, folder: str, options: str) -> None:
    spark = session(jars)
    given = json.loads(options)
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        if line.strip() == "read":
            frame = spark.read.format("pulsar").options(**given).load()
            frame.write.format("noop").mode("overwrite").save()
        else:
            source = spark.readStream.format("pulsar").options(**given)
            frame = source.option("startingOffsets", "earliest").load()
            stream(frame, Path(folder) / f"connector-{number}")
        print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
