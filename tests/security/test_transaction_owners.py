"""A transaction's metadata is visible to its owner and superusers only."""

import httpx
import pytest
from credentials import bearer
from permission_world import World

from pybroker.base.names import TxnId


def metadata(world: World, txn_id: TxnId, by: str) -> httpx.Response:
    url = f"{world.broker.admin_url}/admin/v3/transactions/transactionMetadata"
    return world.http.get(f"{url}/{txn_id.most}/{txn_id.least}", headers=bearer(by))


def test_a_transactions_owner_sees_its_metadata(world: World) -> None:
    world.grant("alice", "produce")
    with world.raw("alice") as client:
        txn_id = client.new_txn()
        for role in ("alice", "admin"):
            found = metadata(world, txn_id, role)
            assert (found.status_code, found.json()["owner"]) == (200, "alice")


@pytest.mark.parametrize("role", ["bob", "boss"])
def test_other_roles_see_neither_it_nor_whether_it_exists(world: World, role: str) -> None:
    with world.raw("alice") as client:
        there, missing = client.new_txn(), TxnId(0, 99_999_999)
        answers = [metadata(world, txn_id, role) for txn_id in (there, missing)]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert answers[0].json() == answers[1].json()
