"""Fixtures for the behaviours of transactions: each test is a fact, observed through a client."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.client import Client

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=["logOrder", "commitOrder"])
def transaction_buffer(request: pytest.FixtureRequest) -> str:
    """The visibility order of transactions in all brokers of a test."""
    order: str = request.param
    return order


@pytest.fixture(scope="session")
def shared_broker(transaction_buffer: str) -> Iterator[Any]:
    """One broker for all tests that neither restart nor configure it."""
    with pybroker.testing.broker(http=True, transaction_buffer=transaction_buffer) as broker:
        yield broker


@pytest.fixture(autouse=True)
def own_brokers(transaction_buffer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that tests start themselves use the same order."""
    broker = partial(pybroker.testing.broker, transaction_buffer=transaction_buffer)
    monkeypatch.setattr(pybroker.testing, "broker", broker)


@pytest.fixture
def client(shared_broker: Any) -> Iterator[Client]:
    client = Client(shared_broker.service_url, enable_transaction=True)
    yield client
    client.close()


@pytest.fixture
def raw(shared_broker: Any) -> Iterator[RawClient]:
    with RawClient(shared_broker.service_url) as raw:
        yield raw


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/topic-{next(_numbers)}"


@pytest.fixture
def topics() -> Callable[[int], list[str]]:
    def make(count: int) -> list[str]:
        return [f"persistent://public/default/topic-{next(_numbers)}" for _ in range(count)]

    return make
