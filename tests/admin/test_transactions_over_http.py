"""Transactions over HTTP: begun, published in, ended, and asked for."""

from typing import Any

import httpx
import pytest
from posting import codes, post, received

import pybroker.testing
from pybroker.client import Client

TRANSACTIONS = "/admin/v3/transactions"


def begin(admin: httpx.Client, **options: Any) -> str:
    """The path of a new transaction."""
    begun = admin.post(TRANSACTIONS, json=options).json()
    return f"{TRANSACTIONS}/{begun['most']}/{begun['least']}"


def id_of(path: str) -> str:
    most, least = path.split("/")[-2:]
    return f"{most}:{least}"


def test_what_a_transaction_publishes_appears_with_its_commit(
    admin: httpx.Client, client: Client, namespace: str
) -> None:
    topics = [f"{namespace}/{name}" for name in ("debits", "credits")]
    for topic in topics:
        assert admin.put(f"/admin/v2/persistent/{topic}").status_code == 204
    txn = begin(admin)
    for topic in topics:
        answer = admin.post(
            f"/topics/persistent/{topic}?txn={id_of(txn)}", json={"messages": [{"payload": "7"}]}
        )
        assert codes(answer.json()["messagePublishResults"]) == [0]
    assert admin.get(txn).json()["status"] == "OPEN"
    post(admin, topics[0], {"payload": "outside"})
    ended = admin.post(f"{txn}/commit")
    assert ended.json()["status"] == "COMMITTED"
    assert [message.data() for message in received(client, topics[0], 2)] == [b"7", b"outside"]
    assert [message.data() for message in received(client, topics[1], 1)] == [b"7"]


def test_what_an_aborted_transaction_published_never_appears(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    txn = begin(admin)
    admin.post(
        f"/topics/persistent/{topic}?txn={id_of(txn)}", json={"messages": [{"payload": "x"}]}
    )
    assert admin.post(f"{txn}/abort").json()["status"] == "ABORTED"
    post(admin, topic, {"payload": "y"})
    assert [message.data() for message in received(client, topic, 1)] == [b"y"]


def test_an_outcome_can_be_asked_for_and_an_end_repeated(admin: httpx.Client) -> None:
    txn = begin(admin)
    for _ in range(2):
        assert admin.post(f"{txn}/commit").status_code == 200
        assert admin.get(txn).json() == {"txnId": f"({id_of(txn).replace(':', ',')})"} | {
            "status": "COMMITTED"
        }
    refused = admin.post(f"{txn}/abort")
    assert refused.status_code == 409


def test_a_transaction_ends_by_its_timeout() -> None:
    with (
        pybroker.testing.broker(http=True) as broker,
        httpx.Client(base_url=broker.admin_url) as api,
    ):
        txn = begin(api, timeoutMs=1000)
        broker.clock.advance("2s")
        told = api.get(txn).json()
        assert told["status"] == "ABORTED"
        assert api.post(f"{txn}/commit").status_code == 409


def test_an_invalid_message_in_a_transaction_refuses_the_request(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    txn = begin(admin)
    body = {"messages": [{"payload": "a"}, {"payload": 7}]}
    refused = admin.post(f"/topics/persistent/{topic}?txn={id_of(txn)}", json=body)
    assert refused.status_code == 400
    assert "message 1" in refused.json()["reason"]
    admin.post(f"{txn}/commit")
    post(admin, topic, {"payload": "b"})
    assert [message.data() for message in received(client, topic, 1)] == [b"b"]


def test_an_ended_transaction_takes_no_more_messages(admin: httpx.Client, topic: str) -> None:
    txn = begin(admin)
    admin.post(f"{txn}/commit")
    body = {"messages": [{"payload": "a"}]}
    refused = admin.post(f"/topics/persistent/{topic}?txn={id_of(txn)}", json=body)
    assert refused.status_code == 409


@pytest.mark.parametrize("said", ["x", "1", "1:", "99999999999999999999:1"])
def test_what_is_no_transaction_is_refused(admin: httpx.Client, topic: str, said: str) -> None:
    body = {"messages": [{"payload": "a"}]}
    refused = admin.post(f"/topics/persistent/{topic}?txn={said}", json=body)
    assert refused.status_code == 400


def test_a_transaction_is_named_with_both_parentheses_or_with_none(
    admin: httpx.Client, topic: str
) -> None:
    most, least = id_of(begin(admin)).split(":")

    def answer(said: str) -> int:
        body = {"messages": [{"payload": "a"}]}
        return admin.post(f"/topics/persistent/{topic}?txn={said}", json=body).status_code

    assert {answer(f"({most},{least})"), answer(f"{most}:{least}")} == {200}
    assert {answer(f"({most},{least}"), answer(f"{most}:{least})")} == {400}


def test_a_begun_transaction_is_not_one_of_a_closed_connection() -> None:
    with (
        pybroker.testing.broker(http=True, transaction_abort_on_disconnect=True) as broker,
        httpx.Client(base_url=broker.admin_url) as api,
    ):
        txn = begin(api, timeoutMs=600_000)
        with httpx.Client(base_url=broker.admin_url) as other:
            assert other.get(txn).json()["status"] == "OPEN"
            assert other.post(f"{txn}/commit").json()["status"] == "COMMITTED"


# -- prepared transactions


def test_a_prepared_transaction_outlives_its_timeout_until_it_is_decided() -> None:
    with (
        pybroker.testing.broker(http=True) as broker,
        httpx.Client(base_url=broker.admin_url) as admin,
    ):
        topic = "public/default/orders"
        assert admin.put(f"/admin/v2/persistent/{topic}").status_code == 204
        txn = begin(admin, timeoutMs=5_000)
        admin.post(
            f"/topics/persistent/{topic}?txn={id_of(txn)}", json={"messages": [{"payload": "x"}]}
        )
        for _ in range(2):
            prepared = admin.post(f"{txn}/prepare", json={"name": "shop"})
            assert (prepared.status_code, prepared.json()["status"]) == (200, "PREPARED")
        broker.clock.advance("1h")
        assert admin.get(txn).json()["status"] == "PREPARED"
        listed = admin.get(f"{TRANSACTIONS}/live", params={"state": "PREPARED"}).json()
        (only,) = listed["transactions"]
        assert (only["preparedName"], only["timeLeftMs"]) == ("shop", None)
        assert listed["timestamp"] - only["preparedTimestamp"] >= 3_600_000
        refused = admin.post(f"{txn}/prepare", json={"name": "other"})
        assert refused.status_code == 409 and "prepared with the name" in refused.text
        assert admin.post(f"{txn}/commit").json()["status"] == "COMMITTED"
        with Client(broker.service_url) as client:
            assert [message.data() for message in received(client, topic, 1)] == [b"x"]
        assert admin.post(f"{txn}/prepare").status_code == 409


def test_a_transaction_of_a_client_can_be_prepared_over_http(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    """So can one of an official client, whose protocol has no PREPARE."""
    txn = client.new_transaction()
    client.create_producer(f"persistent://{topic}").send(b"x", txn=txn)
    path = f"{TRANSACTIONS}/{txn.txn_id.most}/{txn.txn_id.least}"
    assert admin.post(f"{path}/prepare").json()["status"] == "PREPARED"
    txn.commit()
    assert admin.get(path).json()["status"] == "COMMITTED"


def test_what_cannot_be_prepared_is_refused(admin: httpx.Client) -> None:
    txn = begin(admin)
    for path, body, code in (
        (txn, {"name": "x" * 201}, 405),
        (txn, {"name": 1}, 400),
        (f"{TRANSACTIONS}/0/99999999", {}, 404),
    ):
        assert admin.post(f"{path}/prepare", json=body).status_code == code
    assert admin.get(txn).json()["status"] == "OPEN"


def test_a_transaction_of_no_coordinator_is_not_found_at_once(
    admin: httpx.Client, topic: str
) -> None:
    path = f"{TRANSACTIONS}/501/1"
    body = {"messages": [{"payload": "a"}]}
    for answer in (
        admin.post(f"{path}/commit"),
        admin.post(f"{path}/abort"),
        admin.post(f"{path}/prepare", json={}),
        admin.get(path),
        admin.post(f"/topics/persistent/{topic}?txn=501:1", json=body),
    ):
        assert answer.status_code == 404
