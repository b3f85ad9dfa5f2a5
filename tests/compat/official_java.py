"""The official Java client, driven from Python: a JVM with its jars and Py4J, without Spark."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import py4j.java_gateway
import py4j.protocol
import pyspark
from one_at_a_time import one_at_a_time
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from pybroker.spark.jars import official_client_jars, resolved_jars

RECEIVE_S = 60
NOTHING_S = 1


def client_jars() -> list[Path]:
    with one_at_a_time("jars") as folder:
        return official_client_jars(folder / "client")


def jars_of(pom: Path, name: str) -> list[Path]:
    """The jars of a POM, kept under this name."""
    with one_at_a_time("jars") as folder:
        return resolved_jars(pom, folder / name)


def spring_jars() -> list[Path]:
    return jars_of(Path(__file__).parent / "java" / "spring" / "pom.xml", "spring")


@contextmanager
def java_gateway(jars: Iterable[Path] | None = None, options: Sequence[str] = ()) -> Iterator[Any]:
    """A JVM with these jars (by default the client's) and these options."""
    py4j_jar = next((Path(pyspark.__file__).parent / "jars").glob("py4j*.jar"))
    classpath = ":".join(map(str, client_jars() if jars is None else jars))
    port = launch_gateway(
        jarpath=str(py4j_jar), classpath=classpath, javaopts=list(options), die_on_exit=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    # For the whole process, PySpark replaces the function that raises Py4J's errors by one that
    # asks Spark's own JVM, which does not know the objects of this JVM.
    of_pyspark = py4j.java_gateway.get_return_value
    py4j.java_gateway.get_return_value = py4j.protocol.get_return_value
    try:
        yield gateway
    finally:
        py4j.java_gateway.get_return_value = of_pyspark
        gateway.shutdown()


class OfficialClient:
    """`org.apache.pulsar.client.api.PulsarClient` with transactions; short names for tests.

    `settings` are methods of the respective builder, with an argument or a tuple of arguments.
    """

    def __init__(self, gateway: Any, service_url: str, **settings: Any) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self.api = gateway.jvm.org.apache.pulsar.client.api
        self._units = gateway.jvm.java.util.concurrent.TimeUnit
        builder = self.api.PulsarClient.builder().serviceUrl(service_url)
        self.client = _with({"enableTransaction": True} | settings, builder).build()

    def producer(self, topic: str, schema: Any = None, **settings: Any) -> Any:
        builder = self.client.newProducer(schema or self.schemas.BYTES).topic(topic)
        return _with(settings, builder).create()

    def reader(self, topic: str, start: Any = None, **settings: Any) -> Any:
        """A reader from the first message, or after `start`."""
        builder = self.client.newReader().topic(topic)
        builder = builder.startMessageId(start or self.api.MessageId.earliest)
        return _with(settings, builder).create()

    def ms(self, duration: int) -> tuple[int, Any]:
        """A duration as Java's methods take it."""
        return duration, self._units.MILLISECONDS

    def strings(self, texts: Sequence[str]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.String, len(texts))
        for place, text in enumerate(texts):
            array[place] = text
        return array

    @property
    def schemas(self) -> Any:
        return self.api.Schema

    def record_schema(self, kind: str, **fields: str) -> Any:
        """A generic schema, JSON or AVRO. A type with a question mark is optional and defaults to
        null.
        """
        types = self._jvm.org.apache.pulsar.common.schema.SchemaType
        builder = self.schemas_of_records.record("Record")
        for name, kind_of_field in fields.items():
            field = builder.field(name).type(getattr(types, kind_of_field.rstrip("?")))
            if kind_of_field.endswith("?"):
                field.optional().defaultValue(None)
            else:
                field.required()
        return self.schemas.generic(builder.build(getattr(types, kind)))

    @property
    def schemas_of_records(self) -> Any:
        return self.api.schema.SchemaBuilder

    def hash_range(self, first: int, last: int) -> Any:
        """An array with one hash range, ends included."""
        ranges = self._gateway.new_array(self.api.Range, 1)
        ranges[0] = self.api.Range.of(first, last)
        return ranges

    def sticky(self, first: int, last: int) -> Any:
        """The policy for these hashes, ends included."""
        ranges = self.hash_range(first, last)
        return self.api.KeySharedPolicy.stickyHashRange().ranges(ranges)

    def key_value_schema(self, encoding: str) -> Any:
        encodings = self._jvm.org.apache.pulsar.common.schema.KeyValueEncodingType
        return self.schemas.KeyValue(
            self.schemas.STRING, self.schemas.STRING, getattr(encodings, encoding)
        )

    def key_value(self, key: str, value: str) -> Any:
        return self._jvm.org.apache.pulsar.common.schema.KeyValue(key, value)

    def consumer(
        self,
        topic: str | Sequence[str],
        subscription: str,
        kind: str = "Exclusive",
        schema: Any = None,
        **settings: Any,
    ) -> Any:
        topics = self.strings([topic] if isinstance(topic, str) else topic)
        builder = self.client.newConsumer(schema or self.schemas.BYTES).topic(topics)
        return self._subscribe(builder, subscription, kind, settings)

    def pattern_consumer(self, pattern: str, subscription: str, **settings: Any) -> Any:
        compiled = self._jvm.java.util.regex.Pattern.compile(pattern)
        builder = self.client.newConsumer().topicsPattern(compiled)
        return self._subscribe(builder, subscription, "Exclusive", settings)

    def _subscribe(
        self, builder: Any, subscription: str, kind: str, settings: Mapping[str, Any]
    ) -> Any:
        builder = builder.subscriptionName(subscription)
        builder = builder.subscriptionType(getattr(self.api.SubscriptionType, kind))
        earliest = self.api.SubscriptionInitialPosition.Earliest
        return _with(settings, builder.subscriptionInitialPosition(earliest)).subscribe()

    def transaction(self, timeout_s: int = 60) -> Any:
        builder = self.client.newTransaction()
        return builder.withTransactionTimeout(timeout_s, self._units.SECONDS).build().get()

    def receive(self, consumer: Any, timeout_s: int = RECEIVE_S) -> Any:
        """The next message; None after the timeout."""
        return consumer.receive(timeout_s, self._units.SECONDS)

    def take(self, consumer: Any, count: int) -> list[bytes]:
        """Receive and acknowledge the next messages; returns their contents."""
        messages = [self.receive(consumer) for _ in range(count)]
        for message in messages:
            consumer.acknowledge(message.getMessageId())
        return [bytes(message.getData()) for message in messages]

    def shutdown(self) -> None:
        """Shut down at once, without telling the broker."""
        self.client.shutdown()


@contextmanager
def official_client(service_url: str) -> Iterator[OfficialClient]:
    with java_gateway() as gateway:
        client = OfficialClient(gateway, service_url)
        yield client
        client.shutdown()


def _with(settings: Mapping[str, Any], builder: Any) -> Any:
    for method, value in settings.items():
        builder = getattr(builder, method)(*(value if isinstance(value, tuple) else (value,)))
    return builder
