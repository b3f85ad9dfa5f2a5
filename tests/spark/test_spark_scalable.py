"""A real Spark reads scalable topics, whose segments are split and merged under its query."""

import itertools
import urllib.request

import pytest

from pybroker.client import Client, InitialPosition
from pybroker.demo.topics import read_all
from pybroker.spark import exactly_once, register

pytestmark = pytest.mark.spark

_NUMBERS = itertools.count()


class Orders:
    def __init__(self, broker):
        self.local = f"spark-orders-{next(_NUMBERS)}"
        self.name = f"topic://public/default/{self.local}"
        self._broker = broker
        self._sent = 0
        with Client(broker.service_url) as client:  # keeps the messages of sealed segments
            client.create_queue_consumer(self.name, "keep")

    def publish(self, count):
        numbers = range(self._sent, self._sent + count)
        self._sent += count
        with Client(self._broker.service_url) as client:
            producer = client.create_producer(self.name)
            for number in numbers:
                producer.send_async(b"%d" % number, partition_key=str(number % 10))
            producer.flush()
        return list(numbers)

    def ask(self, path):
        url = f"{self._broker.admin_url}/admin/v2/scalable/public/default/{self.local}{path}"
        request = urllib.request.Request(url, method="POST")
        urllib.request.urlopen(request).close()


@pytest.fixture
def orders(broker):
    return Orders(broker)


def test_exactly_once_across_splits_and_merges(spark, broker, orders, tmp_path):
    """One run dies in the middle of a batch; the next ones go on with other segments."""
    out, control = (
        f"persistent://public/default/{orders.local}-{each}" for each in ("out", "control")
    )
    with Client(broker.service_url) as client:
        for topic in (out, control):
            client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest)

    def write(batch, batch_id):
        return {out: batch.select("value")}

    def run(write=write):
        register(spark)
        source = spark.readStream.format("pulsar").options(
            service_url=broker.service_url,
            topic=orders.name,
            subscription="copy",
            max_entries_per_trigger="20",
        )
        checkpoint = str(tmp_path / "checkpoint")
        process = exactly_once(
            write, service_url=broker.service_url, checkpoint=checkpoint, control_topic=control
        )
        writer = source.load().writeStream.foreachBatch(process)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    def dies(batch, batch_id):
        if batch_id:
            raise RuntimeError("the worker dies")
        return write(batch, batch_id)

    published = orders.publish(40)
    orders.ask("/split/0")
    published += orders.publish(40)
    with pytest.raises(Exception, match="the worker dies"):
        run(dies)
    orders.ask("/split/1")
    orders.ask("/merge/4/2")
    published += orders.publish(40)
    run()
    copied = [int(message.data()) for message in read_all(broker.service_url, [out])]
    assert sorted(copied) == published
