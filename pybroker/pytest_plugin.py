"""Fixtures for pytest, which finds them by itself where pybroker is installed.

`pulsar_broker` is a broker for one test, `pulsar_broker_shared` one for the whole session. Nothing
is imported before a test asks for one; `-p no:pybroker` leaves them out.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pybroker.testing import RunningBroker


@pytest.fixture
def pulsar_broker() -> "Iterator[RunningBroker]":
    from pybroker.testing import broker

    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def pulsar_broker_shared() -> "Iterator[RunningBroker]":
    from pybroker.testing import broker

    with broker() as running:
        yield running
