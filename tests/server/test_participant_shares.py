"""How many topics and subscriptions transactions of a connection and of a principal may have."""

from typing import Any

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token
from raw_client import RawClient

import pybroker.testing
from pybroker.base.names import TxnId
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

MOST = 10
OF_CONNECTION: dict[str, Any] = {"max_participants_per_connection": MOST}
OF_PRINCIPAL: dict[str, Any] = TOKEN_SETTINGS | {
    "authorization_enabled": True,
    "super_user_roles": ("admin",),
    "max_participants_per_principal": MOST,
}


def add(client: RawClient, txn_id: TxnId, count: int, name: str = "t") -> Any:
    body = pb.CommandAddPartitionToTxn(
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        partitions=[f"persistent://public/default/{name}-{number}" for number in range(count)],
    )
    return client.request(pb.BaseCommand.ADD_PARTITION_TO_TXN, "addPartitionToTxn", body)


def login(broker: RunningBroker, role: str) -> RawClient:
    return RawClient(broker.service_url, auth_method_name="token", auth_data=token(role).encode())


def assert_added(answer: Any) -> None:
    assert not answer.HasField("error"), answer


def assert_too_many(answer: Any, why: str) -> None:
    assert answer.error == pb.TooManyRequests
    assert why in answer.message


def test_a_connection_s_transactions_have_a_limited_number_of_participants_together() -> None:
    with (
        pybroker.testing.broker(**OF_CONNECTION) as broker,
        RawClient(broker.service_url) as one,
        RawClient(broker.service_url) as other,
    ):
        first, second = one.new_txn(), one.new_txn()
        assert_added(add(one, first, MOST - 1))
        assert_too_many(add(one, second, 2), f"more than {MOST} topics and subscriptions")
        assert_added(add(one, second, 1))
        refused = one.add_subscription(second, "persistent://public/default/t", "sub")
        assert_too_many(refused, "maxParticipantsPerConnection")
        one.end(one.new_txn(), commit=True)  # which had none
        assert_too_many(add(one, second, 1, "u"), "maxParticipantsPerConnection")
        assert_added(add(other, second, 2))  # which has a share of its own
        assert not one.end(first, commit=True).HasField("error")
        assert_added(add(one, second, MOST - 1))


def test_transactions_that_others_ended_count_no_more() -> None:
    with (
        pybroker.testing.broker(**OF_CONNECTION) as broker,
        RawClient(broker.service_url) as one,
        RawClient(broker.service_url) as other,
    ):
        first, second = one.new_txn(), one.new_txn()
        assert_added(add(one, first, MOST))
        assert not other.end(first, commit=False).HasField("error")
        assert_added(add(one, second, MOST))
        assert_too_many(add(one, second, 1, "u"), "maxParticipantsPerConnection")


def test_what_was_added_twice_counts_once() -> None:
    with pybroker.testing.broker(**OF_CONNECTION) as broker, RawClient(broker.service_url) as one:
        txn_id = one.new_txn()
        for _ in range(3):
            assert_added(add(one, txn_id, MOST // 2))


@pytest.mark.parametrize("settings", [{"max_participants_per_connection": 0}, {}])
def test_zero_is_no_limit_and_the_default_is_high(settings: dict[str, Any]) -> None:
    with pybroker.testing.broker(**settings) as broker, RawClient(broker.service_url) as one:
        assert_added(add(one, one.new_txn(), 900))


def allow(broker: RunningBroker, *roles: str) -> None:
    """On the namespace public/default."""
    headers = {"Authorization": f"Bearer {token('admin')}"}
    for role in roles:
        answer = httpx.post(
            f"{broker.admin_url}/admin/v2/namespaces/public/default/permissions/{role}",
            json=["produce"],
            headers=headers,
        )
        assert answer.is_success, answer.text


def test_a_principal_s_transactions_have_a_limited_number_of_participants_together() -> None:
    with pybroker.testing.broker(http=True, **OF_PRINCIPAL) as broker:
        allow(broker, "alice", "bob")
        with (
            login(broker, "admin") as admin,
            login(broker, "alice") as one,
            login(broker, "alice") as other,
            login(broker, "bob") as bob,
        ):
            for _ in range(2):
                assert_added(add(admin, admin.new_txn(), MOST + 1))  # superusers have no limit
            first, second = one.new_txn(), other.new_txn(tc_id=1)
            assert_added(add(one, first, MOST))
            assert_too_many(add(other, second, 1), "of alice would have more than 10")
            assert_added(add(bob, bob.new_txn(), MOST))
            assert not one.end(first, commit=True).HasField("error")
            assert_added(add(other, second, MOST))


def test_what_joins_by_itself_counts_against_the_principal_s_limit_too() -> None:
    with pybroker.testing.broker(http=True, **OF_PRINCIPAL) as broker:
        allow(broker, "alice")
        with login(broker, "alice") as one:
            spanning, other = one.new_txn(spans_namespace="public/default"), one.new_txn()
            assert_added(add(one, other, MOST - 1, "other"))
            for producer_id in (1, 2):
                one.create_producer(f"persistent://public/default/j-{producer_id}", producer_id)
            first = one.publish(b"m", 0, spanning, producer_id=1)
            assert isinstance(first, pb.CommandSendReceipt), first
            refused = one.publish(b"m", 0, spanning, producer_id=2)
            assert isinstance(refused, pb.CommandSendError), refused
            assert refused.error == pb.NotAllowedError
            assert "of alice would have more than 10" in refused.message
            again = one.publish(b"n", 1, spanning, producer_id=1)  # its topic takes part already
            assert isinstance(again, pb.CommandSendReceipt), again
