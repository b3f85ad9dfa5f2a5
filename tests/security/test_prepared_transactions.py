"""Prepared transactions and permissions: who may prepare, how many, who sees and who decides."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from credentials import bearer, token
from permission_world import SETTINGS

import pybroker.testing
from pybroker.client import (
    AuthenticationToken,
    AuthorizationError,
    Client,
    NotAllowed,
    TxnId,
    TxnState,
)
from pybroker.testing import RunningBroker

As = Callable[[str], Client]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(
        http=True,
        **SETTINGS,
        transaction_coordinators=1,
        prepare_transaction_roles=("alice", "bob"),
        max_prepared_transactions_per_principal=2,
    ) as running:
        yield running


@pytest.fixture
def as_role(broker: RunningBroker) -> Iterator[As]:
    clients: dict[str, Client] = {}

    def client_of(role: str) -> Client:
        if role not in clients:
            login = AuthenticationToken(token(role))
            clients[role] = Client(broker.service_url, authentication=login)
        return clients[role]

    yield client_of
    admin = client_of("admin")
    for left in admin.prepared_transactions():
        admin.attach_transaction(left.txn_id).abort()
    for client in clients.values():
        client.close()


def prepared(client: Client, name: str = "") -> TxnId:
    txn = client.new_transaction()
    txn.prepare(name)
    return txn.txn_id


def over_http(broker: RunningBroker, txn_id: TxnId, what: str, by: str) -> httpx.Response:
    path = f"/admin/v3/transactions/{txn_id.most}/{txn_id.least}/{what}"
    return httpx.post(broker.admin_url + path, headers=bearer(by))


def test_only_the_roles_of_the_configuration_prepare(broker: RunningBroker, as_role: As) -> None:
    txn = as_role("carol").new_transaction()
    with pytest.raises(AuthorizationError):
        txn.prepare()
    answer = over_http(broker, txn.txn_id, "prepare", by="carol")
    assert answer.status_code == 403
    assert txn.state is TxnState.OPEN
    txn.commit()
    prepared(as_role("alice"))
    prepared(as_role("admin"))


def test_roles_and_limits_change_while_the_broker_runs(broker: RunningBroker, as_role: As) -> None:
    txn = as_role("carol").new_transaction()
    route = f"{broker.admin_url}/admin/v2/brokers/configuration"
    changes = {"prepareTransactionRoles": "carol", "maxPreparedTransactionsPerPrincipal": "1"}
    for name, value in changes.items():
        assert httpx.post(f"{route}/{name}/{value}", headers=bearer("admin")).is_success
    try:
        txn.prepare()
        with pytest.raises(NotAllowed, match="carol has 1 prepared"):
            as_role("carol").new_transaction().prepare()
        with pytest.raises(AuthorizationError):
            as_role("alice").new_transaction().prepare()
    finally:
        for name in changes:
            assert httpx.delete(f"{route}/{name}", headers=bearer("admin")).is_success
    prepared(as_role("alice"))


def test_a_role_prepares_no_more_than_its_share_and_leaves_others_theirs(as_role: As) -> None:
    alice = as_role("alice")
    first, _ = prepared(alice), prepared(alice)
    over = alice.new_transaction()
    with pytest.raises(NotAllowed, match=r"alice has 2 prepared .*: commit or abort some"):
        over.prepare()
    prepared(as_role("bob"))
    for _ in range(3):
        prepared(as_role("admin"))
    alice.attach_transaction(first).commit()
    over.prepare()


def test_a_role_sees_its_own_ones_and_a_superuser_all(as_role: As) -> None:
    of_alice, of_bob = prepared(as_role("alice"), "a"), prepared(as_role("bob"), "b")
    for role, seen in (("alice", {of_alice}), ("bob", {of_bob}), ("carol", set())):
        assert {each.txn_id for each in as_role(role).prepared_transactions()} == seen
    owners = {each.txn_id: each.owner for each in as_role("admin").prepared_transactions()}
    assert owners == {of_alice: "alice", of_bob: "bob"}


@pytest.mark.parametrize("by_http", [False, True])
@pytest.mark.parametrize("what", ["commit", "abort"])
def test_a_superuser_s_decision_for_another_is_audited_and_the_owner_s_own_is_not(
    broker: RunningBroker,
    as_role: As,
    caplog: pytest.LogCaptureFixture,
    by_http: bool,
    what: str,
) -> None:
    caplog.set_level(logging.INFO, "pybroker.audit")

    def decide(role: str, txn_id: TxnId) -> None:
        if by_http:
            assert over_http(broker, txn_id, what, by=role).status_code == 200
        else:
            getattr(as_role(role).attach_transaction(txn_id), what)()

    def audited() -> list[Any]:
        said = [vars(record) for record in caplog.records if record.name == "pybroker.audit"]
        return [each for each in map(str, said) if f"{what} prepared transaction" in each]

    decide("alice", prepared(as_role("alice")))
    assert audited() == []
    txn_id = prepared(as_role("alice"))
    decide("admin", txn_id)
    (line,) = audited()
    assert f"{txn_id} of alice" in line and "admin" in line
