"""A PySpark job that uses the official Java client's transactions through the driver's gateway.

`python -m pybroker.demo.java_job SETTINGS`. For each micro-batch, a Java transaction acknowledges
the end of the batch on the source's subscription and publishes the rows, then commits. Before that,
the job publishes the same rows in a transaction that it aborts; these must stay invisible.
"""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pybroker.base.names import TopicName
from pybroker.client import MessageId
from pybroker.spark import register

PLANES: Final = "persistent://public/default/planes"
PLANES_COPY: Final = "persistent://public/default/planes-by-java-client"
SUBSCRIPTION: Final = "java-client"


@dataclass(frozen=True, slots=True)
class JavaJobSettings:
    service_url: str
    checkpoint: str
    jars: str
    entries_per_trigger: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class JavaClient:
    """The parts of the Java API that the job needs. Each is looked up once, because a lookup is a
    round trip.
    """

    def __init__(self, spark: SparkSession, service_url: str) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._gateway = gateway
        self._jvm = self._gateway.jvm
        self._api = self._jvm.org.apache.pulsar.client.api
        client_class = self._api.PulsarClient
        self._client = (
            client_class.builder().serviceUrl(service_url).enableTransaction(True).build()
        )
        self._producer = self._client.newProducer().topic(PLANES_COPY).create()
        self._consumers: dict[str, Any] = {}

    def publish(self, values: list[bytes], ends: dict[str, MessageId], commit: bool) -> None:
        minutes = self._jvm.java.util.concurrent.TimeUnit.MINUTES
        txn = self._client.newTransaction().withTransactionTimeout(2, minutes).build().get()
        for topic, end in ends.items():
            java_id = self._api.MessageId.fromByteArray(end.serialize())
            self._consumer(topic).acknowledgeCumulativeAsync(java_id, txn).get()
        for value in values:
            self._producer.newMessage(txn).value(value).sendAsync()
        (txn.commit() if commit else txn.abort()).get()

    def _consumer(self, topic: str) -> Any:
        if topic not in self._consumers:
            topics = self._gateway.new_array(self._jvm.java.lang.String, 1)
            topics[0] = topic
            builder = self._client.newConsumer().topic(topics).subscriptionName(SUBSCRIPTION)
            kind = self._api.SubscriptionType.Failover
            self._consumers[topic] = builder.subscriptionType(kind).subscribe()
        return self._consumers[topic]

    def close(self) -> None:
        self._client.close()


def main(settings: JavaJobSettings) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", settings.jars)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    client = JavaClient(spark, settings.service_url)

    def process(batch: DataFrame, batch_id: int) -> None:
        values = [bytes(row.value) for row in batch.select("value").collect()]
        ends = _ends(batch)
        client.publish(values, ends, commit=False)
        client.publish(values, ends, commit=True)
        print(f"batch {batch_id}: {len(values)} rows aborted once, then committed", flush=True)

    source = (
        spark.readStream.format("pulsar")
        .schema("value binary, topic string, message_id string")
        .option("service.url", settings.service_url)
        .option("topic", PLANES)
        .option("subscription", SUBSCRIPTION)
        .option("maxEntriesPerTrigger", str(settings.entries_per_trigger))
    )
    stream = source.load().writeStream.foreachBatch(process)
    stream = stream.option("checkpointLocation", settings.checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()
    client.close()


def _ends(batch: DataFrame) -> dict[str, MessageId]:
    """The batch's end in each partition: its last message, because this batch is not filtered."""
    place = F.split("message_id", ":").cast("array<long>")
    rows = batch.groupBy("topic").agg(F.max(place).alias("last")).collect()
    return {
        row.topic: MessageId(TopicName.parse(row.topic).partition, row.last[0], row.last[1])
        for row in rows
    }


if __name__ == "__main__":
    main(JavaJobSettings(**json.loads(sys.argv[1])))
