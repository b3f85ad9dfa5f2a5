"""Right: Spark publishes each micro-batch in one transaction with the acknowledgement of its input.

python examples/spark_exactly_once.py SERVICE_URL INPUT DEBITS CREDITS DIRECTORY
"""

import sys

from pyspark.sql import SparkSession

from pybroker.spark import exactly_once, register, run

service_url, source, debits, credits, directory = sys.argv[1:6]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
register(spark)
transfers = (
    spark.readStream.format("pulsar")
    .option("service.url", service_url)
    .option("topic", source)
    .option("subscription", "ledger")
    .load()
)


def split(batch, batch_id):
    accepted = batch.where("length(value) > 0").selectExpr("string(__key) as key", "value")
    return {debits: accepted, credits: accepted}


checkpoint = f"{directory}/checkpoint"
publish = exactly_once(
    split, service_url=service_url, checkpoint=checkpoint, control_topic="ledger-control"
)
query = transfers.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoint).start()
run(query)
