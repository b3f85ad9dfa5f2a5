"""A job for executors without this project: it writes numbers and reads them back.

spark_shipped_job.py SERVICE_URL TOPIC; prints the count and the sum of the numbers read.
"""

import sys

from pyspark.sql import SparkSession

from pybroker.spark import register


def main(service_url: str, topic: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    options = {"service.url": service_url, "topic": topic}
    rows = spark.range(0, 1000, 1, 4).selectExpr("string(id) value")
    rows.write.format("pulsar").mode("append").options(**options).save()
    numbers = (
        spark.read.format("pulsar").options(**options).load().selectExpr("int(string(value)) n")
    )
    found = numbers.selectExpr("count(*) c", "sum(n) s").first()
    assert found is not None
    print(f"came back: {found.c} {found.s}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
