"""A streaming query that copies one topic to another; prints the number of each finished batch.

Arguments: sink or foreachBatch, service URL, source, sink, checkpoint.
"""

import os
import sys

from pyspark.sql import SparkSession

from pybroker.spark import exactly_once, register


def main(kind: str, service_url: str, source: str, sink: str, checkpoint: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # A task has four attempts, as on a cluster.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    read = spark.readStream.format("pulsar").option("service.url", service_url)
    read = read.option("topic", source).option("startingOffsets", "earliest")
    if kind == "foreachBatch":
        read = read.option("subscription", "copy")
    rows = read.option("maxEntriesPerTrigger", "60").load().select("value")
    if kind == "sink":
        write = rows.writeStream.format("pulsar").option("service.url", service_url)
        write = write.option("topic", sink).option("maxDriverBytesPerTask", "100")
    else:
        write = rows.writeStream.foreachBatch(
            exactly_once(
                lambda batch, batch_id: {sink: batch},
                service_url=service_url,
                checkpoint=checkpoint,
                control_topic=f"{sink}-control",
                mode="executor",
            )
        )
    query = write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    told = -1
    while not query.awaitTermination(0.1):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told:
            told = progress["batchId"]
            print(f"batch {told}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
