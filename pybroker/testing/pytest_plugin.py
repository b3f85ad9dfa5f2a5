"""The fixtures of pybroker.pytest_plugin for a conftest.py that names this module."""

from pybroker.pytest_plugin import pulsar_broker, pulsar_broker_shared

__all__ = ["pulsar_broker", "pulsar_broker_shared"]
