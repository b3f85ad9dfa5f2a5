"""The fixtures of pybroker.pytest_plugin, for a conftest.py that names this module."""

from pybroker.pytest_plugin import (
    pulsar_broker,
    pulsar_broker_module,
    pulsar_broker_shared,
    pulsar_client,
    pulsar_clock,
    pulsar_faults,
    pulsar_namespace,
    pulsar_topic,
)

__all__ = [
    "pulsar_broker",
    "pulsar_broker_module",
    "pulsar_broker_shared",
    "pulsar_client",
    "pulsar_clock",
    "pulsar_faults",
    "pulsar_namespace",
    "pulsar_topic",
]
