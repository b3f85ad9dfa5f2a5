"""Spans of OpenTelemetry through producers, consumers and transactions."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import pybroker.testing
from pybroker.client import Client, tracing
from pybroker.testing import RunningBroker

WAIT_MS = 30_000


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(transaction_coordinators=1) as broker:
        yield broker


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    tracing.enable(traced.provider)
    yield traced
    tracing.disable()


def test_a_message_s_processing_belongs_to_the_trace_that_published_it(
    broker: RunningBroker, traced: Traced
) -> None:
    with Client(broker.service_url) as client:
        consumer = client.subscribe("traced", "s")
        producer = client.create_producer("traced")
        with traced.provider.get_tracer("mine").start_as_current_span("request") as request:
            producer.send(b"x", {"mine": "kept"})
        message = consumer.receive(WAIT_MS)
        with tracing.processing(message) as span:
            assert span.is_recording()
    (published,), (received,) = traced.spans("publish"), traced.spans("receive")
    (processed,) = traced.spans("process")
    trace_id = request.get_span_context().trace_id
    assert published.context.trace_id == processed.context.trace_id == trace_id
    assert published.parent.span_id == request.get_span_context().span_id
    assert processed.parent.span_id == published.context.span_id
    assert received.links[0].context.span_id == published.context.span_id
    assert message.properties()["mine"] == "kept"
    assert message.properties()["traceparent"].split("-")[2] == f"{published.context.span_id:016x}"
    assert published.attributes["messaging.destination.name"].endswith("/traced")


def test_a_transaction_is_a_span_with_its_participants(
    broker: RunningBroker, traced: Traced
) -> None:
    with Client(broker.service_url, enable_transaction=True) as client:
        producer = client.create_producer("out")
        with client.new_transaction() as txn:
            producer.send(b"x", txn=txn)
        with pytest.raises(ZeroDivisionError), client.new_transaction():
            raise ZeroDivisionError
    committed, aborted = traced.spans("transaction")
    assert committed.attributes["pybroker.txn_outcome"] == "committed"
    assert aborted.attributes["pybroker.txn_outcome"] == "aborted"
    (event,) = committed.events
    assert event.attributes["topic"].endswith("/out")
    (published,) = traced.spans("publish")
    assert published.attributes["pybroker.txn_id"] == committed.attributes["pybroker.txn_id"]


def test_a_message_that_fails_is_a_span_that_failed(broker: RunningBroker, traced: Traced) -> None:
    with Client(broker.service_url) as client:
        producer = client.create_producer("refused")
        with pytest.raises(Exception, match="bytes in one entry"):
            producer.send(b"x" * 10_000_000)
    (published,) = traced.spans("publish")
    assert published.status.status_code is StatusCode.ERROR


def test_the_block_around_a_batch_is_the_parent_of_its_transaction(
    broker: RunningBroker, traced: Traced
) -> None:
    with (
        Client(broker.service_url, enable_transaction=True) as client,
        tracing.around("spark micro-batch", batch_id=7),
    ):
        client.new_transaction().abort()
    (batch,), (transaction,) = traced.spans("spark"), traced.spans("transaction")
    assert batch.attributes["pybroker.batch_id"] == 7
    assert transaction.parent.span_id == batch.context.span_id


def test_without_configuration_nothing_of_opentelemetry_is_imported(broker: RunningBroker) -> None:
    script = f"""
import sys
from pybroker.client import Client
with Client({broker.service_url!r}) as client:
    client.create_producer("untraced").send(b"x")
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


FORGED = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.mark.parametrize(
    "forged",
    [
        {"traceparent": "00-" + "0" * 32 + "-" + "b" * 16 + "-01"},
        {"traceparent": "x" * 100_000, "tracestate": "a=1"},
        {"traceparent": FORGED, "tracestate": " " * 100_000},
        {"traceparent": FORGED, "tracestate": "\x00=\n,,=" * 20},
        {"tracestate": "a=1"},
    ],
)
def test_a_forged_context_costs_no_more_than_its_trace(
    broker: RunningBroker,
    traced: Traced,
    caplog: pytest.LogCaptureFixture,
    forged: dict[str, str],
) -> None:
    tracing.disable()
    with Client(broker.service_url) as client:
        consumer = client.subscribe("forged", "s")
        client.create_producer("forged").send(b"x", forged)
        tracing.enable(traced.provider)
        message = consumer.receive(WAIT_MS)
        with tracing.processing(message) as span:
            assert not span.get_span_context().trace_state
        client.create_producer("forwarded").send(b"x", message.properties())
        consumer.acknowledge(message)
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)
    (received,), (published,) = traced.spans("receive"), traced.spans("publish")
    is_valid = forged.get("traceparent") == FORGED
    assert len(received.links) == is_valid
    assert (f"{published.context.trace_id:032x}" == "a" * 32) is is_valid


def test_a_forwarded_context_leaves_no_state_of_another_trace(
    broker: RunningBroker, traced: Traced
) -> None:
    with Client(broker.service_url) as client:
        consumer = client.subscribe("stale", "s")
        client.create_producer("stale").send(b"x", {"traceparent": "none", "tracestate": "a=1"})
        assert "tracestate" not in consumer.receive(WAIT_MS).properties()
