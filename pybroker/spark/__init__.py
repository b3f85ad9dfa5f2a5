"""Exactly-once pipelines with PySpark: a streaming source and what `foreachBatch` needs.

register(spark)
transfers = spark.readStream.format("pulsar").options(service_url=…, topic=…, …).load()
write = exactly_once(ledger, service_url=…, checkpoint=…, control_topic=…)
transfers.writeStream.foreachBatch(write).option("checkpointLocation", …).start()
"""

from pybroker.spark.datasource import PulsarDataSource, register
from pybroker.spark.decision import BatchRefused, CursorsDisagree
from pybroker.spark.exactly_once import Fenced, Step, exactly_once
from pybroker.spark.marker import Marker
from pybroker.spark.replay import InputLost
from pybroker.spark.work import Work

__all__ = [
    "BatchRefused",
    "CursorsDisagree",
    "Fenced",
    "InputLost",
    "Marker",
    "PulsarDataSource",
    "Step",
    "Work",
    "exactly_once",
    "register",
]
