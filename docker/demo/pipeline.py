"""Bills each order of the shop exactly once: pipeline.py SERVICE_URL CHECKPOINT.

Every two seconds, one transaction contains the acknowledgement of the orders, an invoice for each
order, and the revenue of each item.
"""

import sys
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pybroker.spark import exactly_once, register

ORDER = "order long, item string, cents long"


def bill(batch: DataFrame, batch_id: int) -> Mapping[str, DataFrame]:
    orders = batch.select("__key", F.from_json(F.col("value").cast("string"), ORDER).alias("order"))
    invoice = F.to_json(F.struct("order.order", "order.cents"))
    revenue = orders.groupBy("order.item").agg(F.sum("order.cents").alias("cents"))
    return {
        "invoices": orders.select("__key", invoice.alias("value")),
        "revenue": revenue.select(
            F.col("item").alias("__key"), F.to_json(F.struct("item", "cents")).alias("value")
        ),
    }


def main(service_url: str, checkpoint: str) -> None:
    options = {"pulsar.client.listenerName": "compose"}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    register(spark)
    source = {"service.url": service_url, "topic": "orders", "subscription": "billing"}
    source["startingOffsets"] = "earliest"
    orders = spark.readStream.format("pulsar").options(**source, **options).load()
    publish = exactly_once(
        bill,
        service_url=service_url,
        checkpoint=checkpoint,
        control_topic="spark-jobs",
        client_options=options,
    )
    query = (
        orders.writeStream.foreachBatch(publish)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="2 seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
