"""How many topics and subscriptions the transactions of a connection and a principal may have."""

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
        one.end(one.new_txn(), commit=True)  # a transaction without participants
        assert_too_many(add(one, second, 1, "u"), "maxParticipantsPerConnection")
        assert_added(add(other, second, 2))  # its share is separate
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
    """Grants produce on the namespace public/default."""
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


def join(client: RawClient, txn_id: TxnId | None, name: str, producer_id: int) -> Any:
    client.create_producer(f"persistent://public/default/{name}", producer_id)
    return client.publish(b"m", 0, txn_id, producer_id=producer_id)


def ack_in(client: RawClient, txn_id: TxnId, position: Any, consumer_id: int = 7) -> Any:
    client.send(
        pb.BaseCommand.ACK,
        "ack",
        pb.CommandAck(
            consumer_id=consumer_id,
            ack_type=pb.CommandAck.Individual,
            message_id=[position],
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
            request_id=99,
        ),
    )
    return client.receive(pb.BaseCommand.ACK_RESPONSE)


def assert_not_allowed(answer: Any, why: str) -> None:
    """Official clients pass this error to the application; others they would retry forever."""
    assert answer.error == pb.NotAllowedError, answer
    assert why in answer.message


def test_what_joins_by_itself_counts_for_its_connection() -> None:
    with (
        pybroker.testing.broker(**OF_CONNECTION) as broker,
        RawClient(broker.service_url) as one,
        RawClient(broker.service_url) as other,
    ):
        spanning, plain = one.new_txn(spans_namespace="public/default"), one.new_txn()
        assert_added(add(one, plain, MOST - 2))
        one.subscribe("persistent://public/default/in", 7)
        assert isinstance(join(one, spanning, "j-1", 1), pb.CommandSendReceipt)
        position = join(one, None, "in", 2).message_id
        assert not ack_in(one, spanning, position).HasField("error")
        assert_not_allowed(join(one, spanning, "j-3", 3), "maxParticipantsPerConnection")
        assert_too_many(add(one, plain, 1, "u"), "maxParticipantsPerConnection")
        assert isinstance(join(other, spanning, "j-4", 4), pb.CommandSendReceipt)
        assert not one.end(spanning, commit=True).HasField("error")
        assert_added(add(one, plain, 2, "u"))


def test_what_joins_a_full_namespace_is_refused_as_official_clients_understand_it() -> None:
    with (
        pybroker.testing.broker(max_active_transactions_per_namespace=1) as broker,
        RawClient(broker.service_url) as one,
    ):
        one.subscribe("persistent://public/default/in", 7)
        position = join(one, None, "in", 1).message_id
        first, second = (one.new_txn(spans_namespace="public/default") for _ in range(2))
        assert isinstance(join(one, first, "j-2", 2), pb.CommandSendReceipt)
        why = "1 active transactions take part in public/default"
        assert_not_allowed(join(one, second, "j-3", 3), why)
        assert_not_allowed(ack_in(one, second, position), why)
        assert not one.end(first, commit=True).HasField("error")
        assert isinstance(one.publish(b"n", 1, second, producer_id=3), pb.CommandSendReceipt)
