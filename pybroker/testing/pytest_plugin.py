"""Fixtures for pytest; say `pytest_plugins = ["pybroker.testing.pytest_plugin"]` in a conftest.py.

`pulsar_broker` is a broker for one test, `pulsar_broker_shared` one for the whole session.
"""

from collections.abc import Iterator

import pytest

from pybroker.testing import RunningBroker, broker


@pytest.fixture
def pulsar_broker() -> Iterator[RunningBroker]:
    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def pulsar_broker_shared() -> Iterator[RunningBroker]:
    with broker() as running:
        yield running
