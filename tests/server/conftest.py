"""A broker shared by all tests of the protocol, and raw connections to it."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def wire_broker() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


@pytest.fixture
def connect(wire_broker: Any) -> Iterator[Callable[..., RawClient]]:
    """Returns a function that opens connections; they are closed after the test."""
    opened: list[RawClient] = []

    def connect(**options: Any) -> RawClient:
        opened.append(RawClient(wire_broker.service_url, **options))
        return opened[-1]

    yield connect
    for raw in opened:
        raw.close()


@pytest.fixture
def raw(connect: Callable[..., RawClient]) -> RawClient:
    return connect()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/wire-{next(_numbers)}"
