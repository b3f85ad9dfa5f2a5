"""A broker in this process, a client of it, and a scalable topic."""

from collections.abc import Iterator
from typing import Any

import pytest
from scalable_orders import Orders

import pybroker.testing
from pybroker.client import Client


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Any) -> Iterator[Client]:
    with Client(broker.service_url) as client:
        yield client


@pytest.fixture
def orders(broker: Any, client: Client) -> Orders:
    return Orders(broker, client)
