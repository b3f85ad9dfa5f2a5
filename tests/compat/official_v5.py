"""Apache Pulsar's V5 SDK for Java, driven from Python: a JVM with its jars and Py4J.

Its messages are records with names of methods, not getters: `message.value()`, `message.id()`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from official_java import jars_of, java_gateway

_POM: Final = Path(__file__).with_name("java") / "v5" / "pom.xml"
RECEIVE_S: Final = 30
NOTHING_S: Final = 1


def v5_jars() -> list[Path]:
    return jars_of(_POM, "v5")


class V5Client:
    """`org.apache.pulsar.client.api.v5.PulsarClient` with transactions; short names for tests.

    `settings` are methods of the respective builder, with an argument or a tuple of arguments.
    """

    def __init__(self, gateway: Any, service_url: str, **settings: Any) -> None:
        self._jvm = gateway.jvm
        self.api = gateway.jvm.org.apache.pulsar.client.api.v5
        policy = self.api.config.TransactionPolicy.builder().timeout(self.seconds(60)).build()
        builder = self.api.PulsarClient.builder().serviceUrl(service_url)
        self.client = _with({"transactionPolicy": policy} | settings, builder).build()

    def seconds(self, count: float) -> Any:
        return self._jvm.java.time.Duration.ofMillis(int(count * 1000))

    @property
    def schemas(self) -> Any:
        return self.api.schema.Schema

    @property
    def earliest(self) -> Any:
        return self.api.config.SubscriptionInitialPosition.EARLIEST

    def producer(self, topic: str, schema: Any = None, **settings: Any) -> Any:
        builder = self.client.newProducer(schema or self.schemas.string()).topic(topic)
        return _with(settings, builder).create()

    def queue(self, topic: str, subscription: str, schema: Any = None, **settings: Any) -> Any:
        builder = self.client.newQueueConsumer(schema or self.schemas.string()).topic(topic)
        return self._subscribed(builder, subscription, settings)

    def stream(self, topic: str, subscription: str, schema: Any = None, **settings: Any) -> Any:
        builder = self.client.newStreamConsumer(schema or self.schemas.string()).topic(topic)
        return self._subscribed(builder, subscription, settings)

    def _subscribed(self, builder: Any, subscription: str, settings: Mapping[str, Any]) -> Any:
        builder = builder.subscriptionName(subscription)
        builder = builder.subscriptionInitialPosition(self.earliest)
        return _with(settings, builder).subscribe()

    def checkpoint(self, topic: str, start: Any = None, **settings: Any) -> Any:
        """A checkpoint consumer from `start`, by default from the first message."""
        builder = self.client.newCheckpointConsumer(self.schemas.string()).topic(topic)
        builder = builder.startPosition(start or self.api.Checkpoint.earliest())
        return _with(settings, builder).create()

    def checkpoint_of(self, data: bytes) -> Any:
        return self.api.Checkpoint.fromByteArray(data)

    def receive(self, consumer: Any, timeout_s: float = RECEIVE_S) -> Any:
        """The next message; None after the timeout."""
        return consumer.receive(self.seconds(timeout_s))

    def values(self, consumer: Any, count: int) -> list[str]:
        """The values of the next messages, which stay unacknowledged."""
        return [self.receive(consumer).value() for _ in range(count)]

    def nothing(self, consumer: Any) -> bool:
        return self.receive(consumer, NOTHING_S) is None

    def close(self) -> None:
        self.client.close()


@contextmanager
def v5_gateway() -> Iterator[Any]:
    with java_gateway(v5_jars()) as gateway:
        yield gateway


def _with(settings: Mapping[str, Any], builder: Any) -> Any:
    for method, value in settings.items():
        builder = getattr(builder, method)(*(value if isinstance(value, tuple) else (value,)))
    return builder
