"""Transactional ids in the admin REST, and which roles may see them."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from credentials import TOKEN_SETTINGS, bearer, token
from raw_client import RawClient

import pybroker.testing
from pybroker.client import Client
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

PATH = "/admin/v3/transactions/transactionalIds"


def test_an_id_is_shown_with_its_epoch_and_open_transactions(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    with Client(admin_broker.service_url, transactional_id="a/b ü") as client:
        txn = client.new_transaction()
        shown = admin.get(f"{PATH}/a%2Fb%20%C3%BC").json()
        assert shown.pop("lastUseTimestamp") > 1_700_000_000_000
        assert shown == {
            "transactionalId": "a/b ü",
            "owner": None,
            "epoch": 1,
            "openTransactions": [str(txn.txn_id)],
        }
        txn.abort()
        (listed,) = (each for each in admin.get(PATH).json() if each["transactionalId"] == "a/b ü")
        assert listed["openTransactions"] == []
    with Client(admin_broker.service_url, transactional_id="a/b ü") as client:
        client.create_producer(topic)
        assert admin.get(f"{PATH}/a%2Fb%20%C3%BC").json()["epoch"] == 2


def test_an_id_that_nobody_used_is_not_there(admin: httpx.Client) -> None:
    answer = admin.get(f"{PATH}/nobody's")
    assert (answer.status_code, "no transactional id" in answer.json()["reason"]) == (404, True)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningBroker]:
    settings: dict[str, Any] = TOKEN_SETTINGS | {
        "authorization_enabled": True,
        "super_user_roles": ("admin",),
    }
    with pybroker.testing.broker(http=True, **settings) as broker:
        for role in ("alice", "bob"):
            data = token(role).encode()
            with RawClient(broker.service_url, auth_method_name="token", auth_data=data) as client:
                begin = pb.CommandNewTxn(txn_ttl_millis=60_000, tc_id=0, transactional_id="x")
                client.request(pb.BaseCommand.NEW_TXN, "newTxn", begin)
        yield broker


def shown_to(broker: RunningBroker, role: str, path: str = "") -> httpx.Response:
    return httpx.get(f"{broker.admin_url}{PATH}{path}", headers=bearer(role))


def test_a_role_sees_its_own_ids_and_a_superuser_all(guarded: RunningBroker) -> None:
    owners = [each["owner"] for each in shown_to(guarded, "alice").json()]
    assert owners == ["alice"]
    owners = [each["owner"] for each in shown_to(guarded, "admin").json()]
    assert sorted(owners) == ["alice", "bob"]
    assert shown_to(guarded, "alice", "/x").json()["owner"] == "alice"
    assert shown_to(guarded, "admin", "/x?owner=bob").json()["owner"] == "bob"
    assert shown_to(guarded, "admin", "/x").status_code == 404
    assert len(shown_to(guarded, "admin", "?owner=bob").json()) == 1


@pytest.mark.parametrize("path", ["?owner=bob", "/x?owner=bob", "/none?owner=bob"])
def test_a_role_does_not_see_the_ids_of_others(guarded: RunningBroker, path: str) -> None:
    assert shown_to(guarded, "alice", path).status_code == 403
