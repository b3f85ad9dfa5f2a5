"""Sends the broker's metrics by OTLP; imported only if the environment requests it."""

import logging
from contextlib import AsyncExitStack

from pybroker.admin.metrics.otlp import OtlpMetrics
from pybroker.admin.routes.metrics import MetricsRoutes
from pybroker.admin.services import AdminServices
from pybroker.base.telemetry import INSTALL

log = logging.getLogger("pybroker")


async def send_metrics(services: AdminServices, parts: AsyncExitStack) -> None:
    metrics = OtlpMetrics(MetricsRoutes(services).of_broker)
    try:
        await metrics.start()
    except ImportError as missing:
        log.warning("no metrics are sent, though OTEL_… requests them (%s): %s", missing, INSTALL)
    except Exception:  # the SDK complains about a variable
        log.exception("no metrics are sent, though OTEL_… requests them")
    else:
        parts.push_async_callback(metrics.stop)
