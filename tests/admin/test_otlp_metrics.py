"""The broker's metrics over OTLP, configured by the standard variables."""

import asyncio

import httpx
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import pybroker.testing
from pybroker.admin.metrics import otlp
from pybroker.admin.metrics.otlp import OtlpMetrics, interval_ms, samples
from pybroker.admin.metrics.table import METRICS
from pybroker.base.metrics import Exposition
from pybroker.base.telemetry import wanted


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_SDK_DISABLED": "true"}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_METRICS_EXPORTER": ""}, True, True),
        ({"OTEL_METRICS_EXPORTER": "console, otlp"}, False, True),
    ],
)
def test_the_standard_variables_say_what_is_sent(
    variables: dict[str, str], traces: bool, metrics: bool
) -> None:
    assert wanted("TRACES", variables) is traces
    assert wanted("METRICS", variables) is metrics


def test_metrics_are_sent_as_they_were_last_rendered() -> None:
    reader = InMemoryMetricReader()

    async def render() -> list[bytes]:
        return [
            b"# TYPE process_cpu_seconds_total counter\n",
            b'process_cpu_seconds_total{cluster="c"} 1.5\n',
            b'pulsar_broker_lookup{cluster="c",quantile="0.5"} NaN\n',
            b'pulsar_active_connections{cluster="c",broker="b"} 3\n',
        ]

    async def send() -> None:
        metrics = OtlpMetrics(render, reader)
        await metrics.start()
        try:
            data = reader.get_metrics_data()
            (scope,) = data.resource_metrics[0].scope_metrics
            points = {m.name: m.data.data_points[0] for m in scope.metrics}
            assert "pulsar_broker_lookup" not in points
            assert points["process_cpu_seconds_total"].value == 1.5
            assert points["pulsar_active_connections"].attributes["broker"] == "b"
        finally:
            await metrics.stop()

    asyncio.run(send())


@pytest.mark.parametrize(
    ("given", "wanted_ms"),
    [
        (None, 60_000),
        ("", 60_000),
        ("5000", 5000),
        ("1", 1000),
        ("0", 60_000),
        ("-5", 60_000),
        ("soon", 60_000),
        ("nan", 60_000),
        ("inf", 60_000),
    ],
)
def test_what_is_no_interval_is_ignored(given: str | None, wanted_ms: float) -> None:
    assert interval_ms(given) == wanted_ms


def test_labels_are_sent_as_they_were_before_they_were_escaped() -> None:
    exposition = Exposition({"cluster": 'a"b\\n\nc} d'}, METRICS)
    exposition.add("process_open_fds", 3)
    ((name, (value, labels)),) = samples(exposition.render())
    assert (name, value) == ("process_open_fds", 3)
    assert labels == {"cluster": 'a"b\\n\nc} d'}


def test_a_rendering_that_fails_is_told_and_the_next_one_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "_LEAST_MS", 1.0)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    rendered, again = 0, asyncio.Event()

    async def render() -> list[bytes]:
        nonlocal rendered
        rendered += 1
        if rendered == 2:
            raise ZeroDivisionError
        if rendered == 3:
            again.set()
        return []

    async def run() -> None:
        metrics = OtlpMetrics(render, InMemoryMetricReader())
        await metrics.start()
        await asyncio.wait_for(again.wait(), 30)
        await metrics.stop()

    asyncio.run(run())
    assert "cannot render new metrics to send" in caplog.text


def test_a_broker_starts_though_the_metrics_cannot_be_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(_: OtlpMetrics) -> None:
        raise ValueError("of the SDK")

    monkeypatch.setattr(OtlpMetrics, "start", fails)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    with pybroker.testing.broker(http=True) as broker:
        assert httpx.get(f"{broker.admin_url}/admin/v2/brokers/health").text == "ok"
    assert "no metrics are sent" in caplog.text
