"""OpenTelemetry spans, if the standard OTEL_… variables name an endpoint or the application calls
`enable`. Until then nothing of OpenTelemetry is imported, and a message costs one look at `spans`.

    publish      from the call until the receipt; the message's properties contain its context
    receive      when the application takes a message; linked to the span that published it
    process      the application's own work on a message, within `with processing(message):`
    transaction  from its beginning until its end is known, with an event for each participant

The context has the W3C's format, in the property `traceparent`, so consumers in other languages
find it too.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pybroker.base.telemetry import INSTALL, wanted
from pybroker.client.messages import Done, Message, MessageId, Outgoing

log = logging.getLogger("pybroker.client")

_SYSTEM: Final = {"messaging.system": "pulsar"}
_CARRIED: Final = ("traceparent", "tracestate")
# Characters: the minimum that the W3C requires. Old SDKs parse longer values in quadratic time.
_MOST_CARRIED: Final = 512


class Spans:
    def __init__(self, provider: Any = None) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = trace.get_tracer("pybroker", tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    def carried(self, properties: Mapping[str, str] | None) -> dict[str, str] | None:
        """Adds the caller's context, unless the properties contain one. Called before another
        thread publishes the message.
        """
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        if not carrier:
            return None if properties is None else dict(properties)
        return carrier | (dict(properties) if properties else {})

    def _parent(self, properties: Mapping[str, str]) -> Any:
        """The context in a message's properties. Any producer may have written them."""
        found = ((name, properties.get(name, "")) for name in _CARRIED)
        carrier = {name: value for name, value in found if 0 < len(value) <= _MOST_CARRIED}
        return self._propagator.extract(carrier)

    def publish(
        self, topic: str, message: Outgoing, txn_id: object, done: Done
    ) -> tuple[Outgoing, Done]:
        """The message with the context of its span, and the callback that ends the span."""
        properties = dict(message.properties or {})
        parent = self._parent(properties)
        properties.pop("tracestate", None)  # the valid part is injected
        span = self._producing(topic, 1, txn_id, parent)
        context = self._trace.set_span_in_context(span, parent)
        self._propagator.inject(properties, context)
        return message._replace(properties=properties), _ending(span, done)

    def publish_batch(self, topic: str, messages: int, txn_id: object, done: Done) -> Done:
        """Starts a span for encoded messages, whose properties cannot change. Returns the callback
        that ends the span.
        """
        return _ending(self._producing(topic, messages, txn_id, None), done)

    def _producing(self, topic: str, messages: int, txn_id: object, parent: Any) -> Any:
        about: dict[str, Any] = _about(topic, "publish")
        if messages > 1:
            about["messaging.batch.message_count"] = messages
        if txn_id is not None:
            about["pybroker.txn_id"] = str(txn_id)
        kind = self._trace.SpanKind.PRODUCER
        return self._tracer.start_span(f"publish {topic}", parent, kind, about)

    def received(self, message: Message) -> None:
        topic = message.topic_name()
        origin = self._trace.get_current_span(self._parent(message.properties()))
        found = origin.get_span_context()
        links = [self._trace.Link(found)] if found.is_valid else []
        kind, about = self._trace.SpanKind.CONSUMER, _about(topic, "receive")
        about["messaging.message.id"] = str(message.message_id())
        span = self._tracer.start_span(f"receive {topic}", None, kind, about, links)
        span.end()

    @contextmanager
    def processing(self, message: Message) -> Iterator[Any]:
        topic = message.topic_name()
        kind, about = self._trace.SpanKind.CONSUMER, _about(topic, "process")
        about["messaging.message.id"] = str(message.message_id())
        parent = self._parent(message.properties())
        with self._tracer.start_as_current_span(f"process {topic}", parent, kind, about) as span:
            yield span

    def transaction(self, txn_id: object) -> Any:
        """The caller ends the span when it knows the outcome."""
        about = {**_SYSTEM, "pybroker.txn_id": str(txn_id)}
        return self._tracer.start_span("transaction", attributes=about)

    @contextmanager
    def around(self, name: str, **about: str | int) -> Iterator[Any]:
        """A span of work that publishes and commits: it is the parent of the spans within it."""
        attributes = {f"pybroker.{key}": value for key, value in about.items()}
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span


spans: Spans | None = None  # None: not enabled


def enable(provider: Any = None) -> None:
    """Creates spans with this TracerProvider; None: with the one that the application has set."""
    global spans
    spans = Spans(provider)


def disable() -> None:
    global spans
    spans = None


@contextmanager
def processing(message: Message) -> Iterator[Any]:
    """A span for your work on a message, a child of the publishing one; None if not enabled."""
    if spans is None:
        yield None
        return
    with spans.processing(message) as span:
        yield span


@contextmanager
def around(name: str, **about: str | int) -> Iterator[None]:
    """A span for the block, if spans are enabled; spans within the block are its children."""
    if spans is None:
        yield
        return
    with spans.around(name, **about):
        yield


def enable_as_configured() -> None:
    """Enables traces if the environment asks for them and they are not enabled yet."""
    if spans is not None or not wanted("TRACES"):
        return
    try:
        enable(_exporting())
    except ImportError as missing:
        log.warning("no traces, though OTEL_… asks for them (%s): %s", missing, INSTALL)


def _exporting() -> Any:
    """The application's provider, if it is one of the SDK; else one that exports over HTTP."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return provider


def failed(span: Any, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.record_exception(error)


def _about(topic: str, operation: str) -> dict[str, Any]:
    return {
        **_SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.type": {"publish": "send"}.get(operation, operation),
    }


def _ending(span: Any, done: Done) -> Done:
    def ended(message_id: MessageId | None, error: Exception | None) -> None:
        if error is not None:
            failed(span, error)
        elif message_id is not None:
            span.set_attribute("messaging.message.id", str(message_id))
        span.end()
        done(message_id, error)

    return ended
