"""Tells from OpenTelemetry's standard environment variables whether telemetry must be sent."""

import os
from collections.abc import Mapping
from typing import Final, Literal

INSTALL: Final = "pip install 'pybroker[otel]'"


def wanted(
    signal: Literal["TRACES", "METRICS"], environment: Mapping[str, str] = os.environ
) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if exporters := environment.get(f"OTEL_{signal}_EXPORTER"):  # empty means unset
        return "otlp" in map(str.strip, exporters.split(","))
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(environment.get(name) for name in names)
