"""How many open transactions a connection and a principal may have; superusers have no limit."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token
from raw_client import RawClient

import pybroker.testing
from pybroker.base.errors import NotAllowed, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.client import Client, TransactionAborted
from pybroker.server.transactions.begun_transactions import BegunTransactions
from pybroker.testing import RunningBroker
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.wire import pulsar_api_pb2 as pb

TOO_MANY = pb.TooManyRequests
OF_PRINCIPAL, OF_CONNECTION = 6, 4
SETTINGS: dict[str, Any] = TOKEN_SETTINGS | {
    "authorization_enabled": True,
    "super_user_roles": ("admin",),
    "transaction_coordinators": 2,
    "max_active_transactions_per_principal": OF_PRINCIPAL,
    "max_active_transactions_per_connection": OF_CONNECTION,
}


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(**SETTINGS) as running:
        yield running


def login(broker: RunningBroker, role: str) -> RawClient:
    return RawClient(broker.service_url, auth_method_name="token", auth_data=token(role).encode())


def begin_in_one_piece(client: RawClient, count: int) -> list[Any]:
    """The answers to begins; the broker reads all of them before it answers any."""
    asked = []
    with client.in_one_piece():
        for _ in range(count):
            body = pb.CommandNewTxn(txn_ttl_millis=60_000, tc_id=0)
            asked.append(client.start_request(pb.BaseCommand.NEW_TXN, "newTxn", body))
    return [client.answer_to(request_id) for request_id in asked]


def begin_all(client: RawClient, count: int) -> list[TxnId]:
    """Begins transactions on both coordinators in turn."""
    return [client.new_txn(tc_id=number % 2) for number in range(count)]


def refusal(client: RawClient, tc_id: int = 0) -> str:
    answer = client.try_new_txn(tc_id=tc_id)
    assert answer.error == TOO_MANY, answer
    return str(answer.message)


def test_a_role_without_any_grant_leaves_room_for_everybody_else(broker: RunningBroker) -> None:
    with login(broker, "nobody") as one, login(broker, "nobody") as other:
        begin_all(one, OF_CONNECTION)
        begin_all(other, OF_PRINCIPAL - OF_CONNECTION)
        for tc_id in (0, 1):
            assert "nobody has 6 active transactions" in refusal(other, tc_id)
        with login(broker, "alice") as alice:
            begin_all(alice, OF_CONNECTION)


def test_a_connection_leaves_room_for_the_same_role_s_others(broker: RunningBroker) -> None:
    with login(broker, "alice") as one, login(broker, "alice") as other:
        begin_all(one, OF_CONNECTION)
        assert "This connection has 4 active" in refusal(one)
        begin_all(other, OF_PRINCIPAL - OF_CONNECTION)


def test_a_superuser_is_never_refused() -> None:
    settings = SETTINGS | {"max_active_transactions_per_coordinator": 3}
    with pybroker.testing.broker(**settings) as broker:
        with login(broker, "alice") as alice:
            begin_all(alice, OF_CONNECTION - 1)
            alice.new_txn(tc_id=0)
            with login(broker, "bob") as bob:
                assert "Coordinator 0 has" in refusal(bob)
        with login(broker, "admin") as admin:
            begin_all(admin, 3 * OF_PRINCIPAL)


@pytest.mark.parametrize("is_open", [True, False])
def test_begins_that_come_together_do_not_pass_the_share_of_a_connection(
    broker: RunningBroker, is_open: bool
) -> None:
    with login(broker, "alice") as alice:
        if is_open:
            alice.end(alice.new_txn(), commit=False)
        answers = begin_in_one_piece(alice, 3 * OF_CONNECTION)
        refused = [answer.message for answer in answers if answer.HasField("error")]
        assert len(refused) == 2 * OF_CONNECTION
        assert all("This connection has 4 active" in message for message in refused)


@pytest.mark.parametrize("is_open", [True, False])
def test_begins_that_come_together_do_not_pass_the_share_of_a_principal(is_open: bool) -> None:
    """Nor do they while their coordinator is being opened."""
    settings = SETTINGS | {"max_active_transactions_per_connection": 0}
    with pybroker.testing.broker(**settings) as broker, login(broker, "alice") as alice:
        if is_open:
            alice.end(alice.new_txn(), commit=False)
        answers = begin_in_one_piece(alice, 3 * OF_PRINCIPAL)
        refused = [answer.message for answer in answers if answer.HasField("error")]
        assert len(refused) == 2 * OF_PRINCIPAL
        assert all("alice has 6 active" in message for message in refused)


def test_a_begin_that_fails_gives_its_place_back(broker: RunningBroker) -> None:
    with login(broker, "alice") as alice:
        for _ in range(2 * OF_CONNECTION):
            assert alice.try_new_txn(timeout_ms=0).error == pb.NotAllowedError
        begin_all(alice, OF_CONNECTION)


def test_a_begin_that_was_not_stored_gives_its_place_back() -> None:
    async def counts() -> list[int]:
        loop, counted = asyncio.get_running_loop(), list[int]()
        begun = BegunTransactions(cast("Coordinators", None))
        stored, failed, cancelled = beginning = [loop.create_future() for _ in range(3)]
        for each in beginning:
            begun.begins(each, False)
        counted.append(len(begun))
        stored.set_result(TxnId(0, 0))
        failed.set_exception(TransactionCoordinatorNotFound("the disk is full"))
        cancelled.cancel()
        await asyncio.wait(beginning)
        counted.append(len(begun))
        begun.ended(TxnId(0, 0))
        return [*counted, len(begun)]

    assert asyncio.run(counts()) == [3, 1, 0]


def test_a_transaction_whose_end_was_refused_still_counts(broker: RunningBroker) -> None:
    with login(broker, "alice") as alice:
        for txn_id in begin_all(alice, OF_CONNECTION):
            for action, together_with in ((pb.ABORT, [5]), (pb.COMMIT, [404])):
                body = pb.CommandEndTxn(
                    txnid_most_bits=txn_id.most,
                    txnid_least_bits=txn_id.least,
                    txn_action=action,
                    together_with=together_with,
                )
                answer = alice.request(pb.BaseCommand.END_TXN, "endTxn", body)
                assert answer.HasField("error"), answer
        assert "This connection has 4 active" in refusal(alice)


@pytest.mark.parametrize("commit", [True, False])
def test_what_has_ended_is_not_counted(broker: RunningBroker, commit: bool) -> None:
    with login(broker, "alice") as alice:
        for _ in range(3):
            for txn_id in begin_all(alice, OF_CONNECTION):
                assert not alice.end(txn_id, commit=commit).HasField("error")


def test_what_another_connection_ended_is_not_counted(broker: RunningBroker) -> None:
    with login(broker, "alice") as alice, login(broker, "alice") as other:
        for _ in range(3):
            for txn_id in begin_all(alice, OF_CONNECTION):
                other.end(txn_id, commit=True)


def live(broker: RunningBroker) -> list[TxnId]:
    async def look(running: Any) -> list[TxnId]:
        served = running.coordinators.served()
        return [txn.txn_id for coordinator in served for txn in coordinator.live()]

    return broker.call(look)


def test_transactions_outlive_their_connection_and_the_broker(broker: RunningBroker) -> None:
    for _ in range(2):
        with login(broker, "alice") as alice:
            begin_all(alice, OF_PRINCIPAL // 2)
    broker.restart()
    with login(broker, "alice") as alice:
        assert "alice has 6 active" in refusal(alice)
        alice.end(live(broker)[0], commit=False)
        alice.new_txn()


def test_without_logins_a_connection_has_its_share() -> None:
    settings = {"max_active_transactions_per_connection": OF_CONNECTION}
    with (
        pybroker.testing.broker(**settings) as broker,
        RawClient(broker.service_url) as one,
        RawClient(broker.service_url) as other,
    ):
        begin_all(one, OF_CONNECTION)
        refusal(one)
        begin_all(other, OF_CONNECTION)


def test_no_limit_is_none() -> None:
    settings = SETTINGS | {
        "max_active_transactions_per_principal": 0,
        "max_active_transactions_per_connection": 0,
    }
    with pybroker.testing.broker(**settings) as broker, login(broker, "alice") as alice:
        begin_all(alice, 5 * OF_PRINCIPAL)


# -- of a namespace


def begin_in(client: RawClient, topic: str) -> tuple[TxnId, Any]:
    txn_id = client.new_txn()
    return txn_id, client.add_partition(txn_id, topic)


def test_a_namespace_s_limits_are_policies_that_may_change_while_transactions_are_open() -> None:
    settings = {"transaction_coordinators": 2}
    with pybroker.testing.broker(http=True, **settings) as broker:
        url = f"{broker.admin_url}/admin/v2/namespaces/public/default/transactionLimits"
        with RawClient(broker.service_url) as one, RawClient(broker.service_url) as other:
            first, added = begin_in(one, "t")
            assert not added.HasField("error")
            limits = {"maxOpenTransactions": 1, "maxTimeoutMs": 60_000}
            assert httpx.post(url, json=limits).status_code == 204
            assert httpx.get(url).json() == limits
            second, refused = begin_in(other, "t")
            assert refused.error == TOO_MANY
            assert "1 active transactions take part in public/default" in refused.message
            assert other.add_subscription(second, "t", "s").error == TOO_MANY
            one.end(first, commit=True)
            assert not other.add_partition(second, "t").HasField("error")
            long = other.new_txn(timeout_ms=60_001)
            assert other.add_partition(long, "t").error == pb.NotAllowedError
            assert httpx.delete(url).status_code == 204
            assert not other.add_partition(long, "t").HasField("error")


def test_an_add_that_comes_too_early_waits_a_moment_for_an_end() -> None:
    settings = {"max_active_transactions_per_namespace": 1, "transaction_coordinators": 1}
    with pybroker.testing.broker(**settings) as broker, RawClient(broker.service_url) as client:
        first, _ = begin_in(client, "t")
        second = client.new_txn()
        with client.in_one_piece():
            body = pb.CommandAddPartitionToTxn(
                txnid_most_bits=0, txnid_least_bits=second.least, partitions=["t"]
            )
            kind = pb.BaseCommand.ADD_PARTITION_TO_TXN
            adding = client.start_request(kind, "addPartitionToTxn", body)
            client.send_end(first, commit=True)
        assert not client.answer_to(adding).HasField("error")


def test_the_python_client_s_application_hears_of_a_namespace_s_bound_on_timeouts() -> None:
    settings = {"max_transaction_timeout_ms_per_namespace": 1000}
    with pybroker.testing.broker(**settings) as broker, Client(broker.service_url) as client:
        producer = client.create_producer("t")
        txn = client.new_transaction(timeout_ms=2000)
        with pytest.raises(NotAllowed, match="public/default allows 1000"):
            producer.send(b"a", txn=txn)
        with pytest.raises(TransactionAborted, match="public/default allows 1000"):
            txn.commit()
