"""The broker's metrics sent by OTLP, as the standard variables say."""

import asyncio

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pybroker.admin.metrics.otlp import OtlpMetrics
from pybroker.base.telemetry import wanted


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_SDK_DISABLED": "true"}, False, False),
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
