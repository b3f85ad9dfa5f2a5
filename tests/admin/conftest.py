"""The admin REST of a running broker, and messages for it to show."""

import itertools
from collections.abc import Iterator

import httpx
import pytest
from described import check_described
from scraped import Scrape, busy_broker, scrape

import pybroker.testing
from pybroker.client import Client
from pybroker.testing import RunningBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def admin_broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scrape:
    with busy_broker(tmp_path_factory.mktemp("data")) as broker:
        scrape(broker)  # the first scrape does not know its own duration
        return scrape(broker)


@pytest.fixture
def admin(admin_broker: RunningBroker) -> Iterator[httpx.Client]:
    """Checks each answer against the API's description."""
    hooks = {"response": [check_described]}
    with httpx.Client(base_url=admin_broker.admin_url, event_hooks=hooks) as client:
        yield client


@pytest.fixture
def namespace(admin: httpx.Client) -> str:
    """A new namespace: tenant/namespace."""
    name = f"public/ns-{next(_numbers)}"
    assert admin.put(f"/admin/v2/namespaces/{name}").status_code == 204
    return name


@pytest.fixture
def topic(admin: httpx.Client, namespace: str) -> str:
    """A new topic: tenant/namespace/topic."""
    name = f"{namespace}/orders"
    assert admin.put(f"/admin/v2/persistent/{name}").status_code == 204
    return name


@pytest.fixture
def client(admin_broker: RunningBroker) -> Iterator[Client]:
    client = Client(admin_broker.service_url, enable_transaction=True)
    yield client
    client.close()
