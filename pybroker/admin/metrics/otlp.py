"""Sends the broker's metrics by OTLP over HTTP, if the standard OTEL_… variables name an endpoint.

The metrics are rendered once per interval, without those of topics, which a collector may scrape.
The SDK's reader has its own thread and sends the last rendering. Failures are logged and do not
affect the broker.
"""

import asyncio
import logging
import math
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from pybroker.admin.metrics.table import METRICS
from pybroker.base.runtime import Pace

log = logging.getLogger("pybroker.admin")

_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS: Final = 60_000.0  # the SDK's default
_LEAST_MS: Final = 1000.0
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

Sample = tuple[float, Mapping[str, str]]
Render = Callable[[], Awaitable[Sequence[bytes]]]


def samples(text: str) -> Iterator[tuple[str, Sample]]:
    """The samples in a rendering, without quantiles of no measurements: OTLP has no value for
    these.
    """
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels, _, value = rest.rpartition("} ")
            if math.isfinite(number := float(value)):
                yield name, (number, {k: _unescaped(v) for k, v in _LABEL.findall(labels)})


def _unescaped(label: str) -> str:
    return _ESCAPED.sub(lambda found: found[1].replace("n", "\n"), label)


def interval_ms(given: str | None) -> float:
    """The interval from OTEL_METRIC_EXPORT_INTERVAL, at least a second. An invalid value is
    ignored, as OpenTelemetry specifies.
    """
    if not given:
        return _INTERVAL_MS
    try:
        interval = float(given)
    except ValueError:
        interval = math.nan
    if not 0 < interval < math.inf:
        log.warning("%s=%r is ignored: give milliseconds above 0", _INTERVAL, given)
        return _INTERVAL_MS
    return max(_LEAST_MS, interval)


class OtlpMetrics:
    """`reader` is for tests; None: a reader that exports once per OTEL_METRIC_EXPORT_INTERVAL."""

    def __init__(self, render: Render, reader: Any = None) -> None:
        self._render = render
        self._last: dict[str, list[Sample]] = {}
        self._given_reader = reader
        self._instruments: set[str] = set()
        self._interval_ms = interval_ms(os.environ.get(_INTERVAL))
        self._provider: Any = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises ImportError, and the SDK's errors about its variables."""
        # In a thread, so that clients are served while the SDK loads.
        self._provider = await asyncio.get_running_loop().run_in_executor(None, self._make_provider)
        self._meter = self._provider.get_meter("pybroker")
        await self.look()
        self._task = asyncio.create_task(self._look_again(), name="metrics by OTLP")

    def _make_provider(self) -> Any:
        from opentelemetry.sdk.metrics import MeterProvider

        return MeterProvider([self._given_reader or self._reader()])

    def _reader(self) -> Any:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        return PeriodicExportingMetricReader(OTLPMetricExporter(), self._interval_ms)

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self.look()
            except Exception:
                log.exception("cannot render new metrics to send")

    async def look(self) -> None:
        """Renders the metrics that are sent next. Yields the loop: each namespace has samples."""
        found: dict[str, list[Sample]] = {}
        pace = Pace(1)
        for piece in await self._render():  # whole lines
            for name, sample in samples(piece.decode()):
                found.setdefault(name, []).append(sample)
            await pace.step()
        self._last = found
        for name in found.keys() - self._instruments:
            self._instruments.add(name)
            self._observe(name)

    def _observe(self, name: str) -> None:
        metric = METRICS.get(name)
        is_counter = metric.kind == "counter" if metric else not name.endswith("_bucket")
        help_text = "" if metric is None else metric.help
        meter = self._meter
        make = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        make(name, [partial(self._observed, name)], description=help_text)

    def _observed(self, name: str, _: object) -> Iterator[Any]:
        """Called in the reader's thread. `_last` is replaced as a whole and never changed."""
        from opentelemetry.metrics import Observation

        for value, labels in self._last.get(name, ()):
            yield Observation(value, labels)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._provider is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, partial(self._provider.shutdown, 2000))
