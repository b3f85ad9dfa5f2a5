"""What a transaction is, and how it ended, is visible to its owner and superusers only."""

import httpx
import pytest
from credentials import bearer
from permission_world import World
from raw_client import RawClient

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


# -- over the wire, also after the end


def answers_to(client: RawClient, txn_id: TxnId, topic: str) -> list[str]:
    """What a client is told that ends the transaction, adds to it, or publishes in it."""
    sent = client.publish(b"x", 0, txn_id)
    answers = [client.end(txn_id, True), client.end(txn_id, False)]
    answers += [client.add_partition(txn_id, topic), client.add_subscription(txn_id, topic, "s")]
    return [str(each.message) for each in (*answers, sent)]


def ended_by_admin(world: World, txn_id: TxnId, reason: str) -> None:
    url = f"{world.broker.admin_url}/admin/v3/transactions/abortTransaction"
    asked = f"{url}/{txn_id.most}/{txn_id.least}?reason={reason}"
    assert world.http.post(asked, headers=bearer("admin")).status_code == 204


def test_how_a_transaction_ended_and_why_is_for_its_owner_only(world: World) -> None:
    world.grant("alice", "produce", "consume")
    world.grant("bob", "produce", "consume")
    with world.raw("alice") as alice, world.raw("bob") as bob, world.raw("admin") as admin:
        bob.create_producer(world.topic)
        committed, aborted = alice.new_txn(), alice.new_txn()
        for txn_id in (committed, aborted):
            assert not alice.add_partition(txn_id, world.topic).HasField("error")
        alice.end(committed, True)
        ended_by_admin(world, aborted, "invoice-4711")
        for txn_id in (committed, aborted):
            for said in answers_to(bob, txn_id, world.topic):
                assert "belongs to another principal than 'bob'" in said
                assert "COMMITTED" not in said and "ABORTED" not in said and "4711" not in said
        for client in (alice, admin):
            assert not client.end(committed, True).HasField("error")
            assert not client.end(aborted, False).HasField("error")
            assert "is COMMITTED" in client.end(committed, False).message
            assert "invoice-4711" in client.end(aborted, True).message


def test_a_fenced_transaction_is_not_told_to_others_by_its_transactional_id(world: World) -> None:
    world.grant("alice", "produce")
    world.grant("bob", "produce")
    with world.raw("alice") as alice, world.raw("bob") as bob, world.raw("alice") as newer:
        begun = alice.try_new_txn(transactional_id="job", session="s1")
        txn_id = TxnId(begun.txnid_most_bits, begun.txnid_least_bits)
        newer.try_new_txn(transactional_id="job", session="s2")
        for commit in (True, False):
            said = bob.end(txn_id, commit).message
            assert "belongs to another principal" in said and "job" not in said
        assert "'job'" in alice.end(txn_id, True).message


def test_a_namespace_that_exists_is_not_told_from_one_that_does_not(world: World) -> None:
    world.admin("POST", f"namespaces/{world.namespace}/transactionCoordinators", [3])
    world.admin("POST", f"persistent/{world.namespace}/t/permissions/carol", ["produce"])
    world.grant("alice", "consume")
    with world.raw("nobody") as nobody:
        for namespace in (world.namespace, f"{world.tenant}/nosuch"):
            assert not nobody.try_new_txn(spans_namespace=namespace).HasField("error")
    for role in ("alice", "carol", "boss", "admin"):
        with world.raw(role) as client:
            said = client.try_new_txn(spans_namespace=world.namespace)
            assert list(said.allowed_coordinators) == [3], role


# -- prepared transactions


def test_only_its_owner_and_superusers_prepare_and_decide_it_over_http(world: World) -> None:
    with world.raw("alice") as alice:
        txn_id = alice.new_txn()
    base = f"{world.broker.admin_url}/admin/v3/transactions"
    path = f"{base}/{txn_id.most}/{txn_id.least}"

    def asked(what: str, by: str) -> int:
        return world.http.post(f"{path}/{what}", headers=bearer(by)).status_code

    def listed(by: str) -> list[str]:
        answer = world.http.get(f"{base}/live?state=PREPARED", headers=bearer(by)).json()
        return [each["owner"] for each in answer["transactions"]]

    assert [asked("prepare", "bob"), asked("prepare", "alice")] == [404, 200]
    assert (listed("bob"), listed("alice"), listed("admin")) == ([], ["alice"], ["alice"])
    assert [asked("commit", "bob"), asked("commit", "admin"), asked("commit", "alice")] == [
        *(404, 200, 200)
    ]
