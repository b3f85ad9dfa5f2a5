"""A job under Spark Connect, with a server on this machine; prints the results."""

import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pybroker.spark import exactly_once, register


def main(url: str, checkpoints: Path) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    register(spark)
    options = {"service.url": url, "startingOffsets": "earliest"}

    def rows(topic: str) -> DataFrame:
        return spark.read.format("pulsar").options(**options, topic=topic).load()

    numbers = spark.range(100).selectExpr("cast(id as string) as value")
    numbers.write.format("pulsar").options(**{"service.url": url}, topic="in").save()
    print("read:", rows("in").select("value").distinct().count())

    stream = spark.readStream.format("pulsar").options(**options, topic="in").load()
    copy = stream.select("value").writeStream.format("pulsar").trigger(availableNow=True)
    copy = copy.options(**{"service.url": url}, topic="out")
    copy.option("checkpointLocation", checkpoints / "copy").start().awaitTermination()
    print("copied:", rows("out").select("value").distinct().count())

    publish = exactly_once(
        lambda batch, _: {"never": batch.select("value")},
        service_url=url,
        checkpoint=str(checkpoints / "each"),
        control_topic="control",
    )
    each = stream.writeStream.foreachBatch(publish).trigger(availableNow=True)
    try:
        each.option("checkpointLocation", checkpoints / "each").start().awaitTermination()
    except StreamingQueryException as error:
        print("refused:", "Run it in a session that is not remote" in str(error))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
