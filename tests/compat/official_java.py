"""The official Java client, driven from Python: a JVM with its jars and Py4J, without Spark."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from pybroker.spark.jars import official_client_jars

JARS = Path(__file__).resolve().parents[2] / "build" / "java-client"
RECEIVE_S = 20
NOTHING_S = 1


@contextmanager
def java_gateway(jars: Iterable[Path] | None = None) -> Iterator[Any]:
    """With the client's jars, unless others are said."""
    py4j_jar = next((Path(pyspark.__file__).parent / "jars").glob("py4j*.jar"))
    classpath = ":".join(map(str, official_client_jars(JARS) if jars is None else jars))
    port = launch_gateway(jarpath=str(py4j_jar), classpath=classpath, die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()


class OfficialClient:
    """`org.apache.pulsar.client.api.PulsarClient` with transactions; short names for tests."""

    def __init__(self, gateway: Any, service_url: str) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._api = gateway.jvm.org.apache.pulsar.client.api
        self._units = gateway.jvm.java.util.concurrent.TimeUnit
        builder = self._api.PulsarClient.builder().serviceUrl(service_url)
        self.client = builder.enableTransaction(True).build()

    def producer(self, topic: str) -> Any:
        return self.client.newProducer().topic(topic).create()

    @property
    def schemas(self) -> Any:
        return self._api.Schema

    def key_value_schema(self, encoding: str) -> Any:
        encodings = self._jvm.org.apache.pulsar.common.schema.KeyValueEncodingType
        return self.schemas.KeyValue(
            self.schemas.STRING, self.schemas.STRING, getattr(encodings, encoding)
        )

    def key_value(self, key: str, value: str) -> Any:
        return self._jvm.org.apache.pulsar.common.schema.KeyValue(key, value)

    def consumer(
        self, topic: str, subscription: str, kind: str = "Exclusive", schema: Any = None
    ) -> Any:
        topics = self._gateway.new_array(self._jvm.java.lang.String, 1)
        topics[0] = topic
        builder = self.client.newConsumer(schema or self.schemas.BYTES).topic(topics)
        builder = builder.subscriptionName(subscription)
        builder = builder.subscriptionType(getattr(self._api.SubscriptionType, kind))
        earliest = self._api.SubscriptionInitialPosition.Earliest
        return builder.subscriptionInitialPosition(earliest).subscribe()

    def pattern_consumer(self, pattern: str, subscription: str) -> Any:
        compiled = self._jvm.java.util.regex.Pattern.compile(pattern)
        builder = self.client.newConsumer().topicsPattern(compiled).subscriptionName(subscription)
        earliest = self._api.SubscriptionInitialPosition.Earliest
        return builder.subscriptionInitialPosition(earliest).subscribe()

    def transaction(self, timeout_s: int = 60) -> Any:
        builder = self.client.newTransaction()
        return builder.withTransactionTimeout(timeout_s, self._units.SECONDS).build().get()

    def receive(self, consumer: Any, timeout_s: int = RECEIVE_S) -> Any:
        """None if nothing came."""
        return consumer.receive(timeout_s, self._units.SECONDS)

    def shutdown(self) -> None:
        """At once, without a word to the broker."""
        self.client.shutdown()
