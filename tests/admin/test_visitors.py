"""Visitors over HTTP: their permissions, and the limits that all of a visitor's requests share."""

from collections.abc import Iterator

import httpx
import pytest
from credentials import bearer
from permission_world import SETTINGS, World

import pybroker.testing
from pybroker.gateway.visitors import IDLE_S
from pybroker.testing import RunningBroker

TRANSACTIONS = "/admin/v3/transactions"
MESSAGES = {"messages": [{"payload": "x"}]}
MOST = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(
        http=True, max_active_transactions_per_connection=MOST, **SETTINGS
    ) as running:
        yield running


@pytest.fixture
def world(broker: RunningBroker) -> World:
    made = World(broker)
    made.admin("PUT", made.on_topic())
    made.grant("writer", "produce")
    return made


def api(world: World, role: str) -> httpx.Client:
    return httpx.Client(base_url=world.broker.admin_url, headers=bearer(role))


def begin(world: World, role: str) -> str:
    with api(world, role) as visitor:
        begun = visitor.post(TRANSACTIONS)
    assert begun.status_code == 200, begun.text
    path: str = begun.json()["path"]
    return path


def publish(world: World, role: str, path: str) -> httpx.Response:
    most, least = path.split("/")[-2:]
    with api(world, role) as visitor:
        return visitor.post(
            f"/topics/persistent/{world.namespace}/t?txn={most}:{least}", json=MESSAGES
        )


def test_only_the_owner_and_a_superuser_end_a_transaction_or_see_its_outcome(world: World) -> None:
    txn = begin(world, "writer")
    with api(world, "other") as other:
        answers = [other.get(txn), other.post(f"{txn}/commit"), other.post(f"{txn}/abort")]
    assert [answer.status_code for answer in answers] == [403, 404, 404]
    with api(world, "writer") as owner:
        assert owner.get(txn).json()["status"] == "OPEN"
        assert owner.post(f"{txn}/commit").status_code == 200
        assert owner.get(txn).json()["status"] == "COMMITTED"
    with api(world, "admin") as superuser:
        assert superuser.get(txn).json()["status"] == "COMMITTED"
    with api(world, "other") as other:
        assert other.get(txn).status_code == 403


def test_nobody_publishes_in_a_transaction_of_another_role(world: World) -> None:
    txn = begin(world, "writer")
    world.grant("other", "produce")
    assert publish(world, "other", txn).status_code == 404  # as one that is not there
    assert publish(world, "writer", txn).status_code == 200
    with api(world, "writer") as owner:
        assert owner.post(f"{txn}/commit").status_code == 200


def test_publishing_in_a_transaction_needs_the_permission_to_produce(world: World) -> None:
    txn = begin(world, "reader")
    assert publish(world, "reader", txn).status_code == 401


def test_a_visitor_without_credentials_begins_nothing(world: World) -> None:
    assert httpx.post(world.broker.admin_url + TRANSACTIONS).status_code == 401


def test_the_requests_of_a_visitor_share_the_limit_of_a_connection(world: World) -> None:
    with api(world, "many") as visitor:
        paths = [visitor.post(TRANSACTIONS).json()["path"] for _ in range(MOST)]
        refused = visitor.post(TRANSACTIONS)
        assert refused.status_code == 429
        assert "maxActiveTransactionsPerConnection" in refused.json()["reason"]
        with api(world, "another") as other:  # is not affected
            ended = other.post(TRANSACTIONS).json()["path"]
            other.post(f"{ended}/abort")
        for path in paths:
            assert visitor.post(f"{path}/abort").status_code == 200
        assert visitor.post(TRANSACTIONS).status_code == 200


def test_an_idle_visitor_leaves_nothing_behind() -> None:
    with (
        pybroker.testing.broker(http=True) as broker,
        httpx.Client(base_url=broker.admin_url) as visitor,
    ):
        path = visitor.post(TRANSACTIONS, json={"timeoutMs": 1000}).json()["path"]
        connections = "/admin/v2/brokers/connections"
        assert visitor.get(connections).json()["total"] == 1
        visitor.post(f"{path}/commit")
        broker.clock.advance(f"{2 * IDLE_S:.0f}s")
        assert visitor.get(connections).json()["total"] == 0
