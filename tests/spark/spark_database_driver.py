"""A Spark driver that copies numbers to a topic and to SQLite, and kills itself at the COMMIT of
its second batch. `python spark_database_driver.py SERVICE_URL NAME FOLDER before|after|never`
"""

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pybroker.spark import Database, exactly_once, register

service_url, name, folder, when = sys.argv[1:5]


def die() -> None:
    os.killpg(0, signal.SIGKILL)  # with the JVM


class Connection(sqlite3.Connection):
    batch_id = -1

    def commit(self) -> None:
        batch_id, self.batch_id = self.batch_id, -1
        if batch_id == 1 and when == "before":
            die()
        super().commit()
        if batch_id == 1 and when == "after":
            die()


def store(connection: Any, batch: DataFrame, batch_id: int) -> None:
    rows = [(int(row.value),) for row in batch.select("value").toLocalIterator()]
    connection.executemany("INSERT INTO copies VALUES (?)", rows)
    connection.batch_id = batch_id


def connect() -> Connection:
    return sqlite3.connect(Path(folder) / "shop.sqlite", factory=Connection, timeout=30)


builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
register(spark)
checkpoint = f"{folder}/checkpoint"
source = spark.readStream.format("pulsar").options(
    service_url=service_url,
    topic=f"{name}-in",
    subscription="copier",
    max_entries_per_trigger="20",
)
process = exactly_once(
    lambda batch, batch_id: {f"{name}-out": batch.select("value")},
    service_url=service_url,
    checkpoint=checkpoint,
    control_topic=f"{name}-control",
    database=Database(connect, store),
)
stream = source.load().writeStream.foreachBatch(process)
stream = stream.option("checkpointLocation", checkpoint)
stream.trigger(availableNow=True).start().awaitTermination()
