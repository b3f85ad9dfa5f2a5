"""A broker with short ledgers, a client of it, and a topic for each test."""

import itertools
from collections.abc import Iterator

import pytest

import pybroker.testing
from pybroker.client import Client
from pybroker.testing import RunningBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(
        http=True,
        managed_ledger_max_entries_per_ledger=5,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    ) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url, enable_transaction=True) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/compact-{next(_numbers)}"
