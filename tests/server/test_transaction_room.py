"""Limits of open transactions in messages and bytes: of a topic, a namespace, a principal."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token
from raw_client import RawClient

import pybroker.testing
from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.client import Client, TransactionAborted
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

T = "persistent://public/default/t"
U = "persistent://public/default/u"
BIG = b"x" * 1000


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


def limit(broker: RunningBroker, **limits: int) -> None:
    url = f"{broker.admin_url}/admin/v2/namespaces/public/default/transactionLimits"
    httpx.post(url, json=limits).raise_for_status()


def begin(raw: RawClient, *topics: str) -> TxnId:
    txn_id = raw.new_txn()
    for topic in topics:
        assert not raw.add_partition(txn_id, topic).HasField("error")
    return txn_id


def outcomes(
    raw: RawClient, txn_id: TxnId, count: int, payload: bytes = b"a", first: int = 0, **where: int
) -> list[str]:
    """The answers to messages sent in one piece, in order."""
    with raw.in_one_piece():
        for sequence_id in range(first, first + count):
            raw.start_publish(payload, sequence_id, txn_id, **where)
    answers = [
        raw.receive(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR) for _ in range(count)
    ]
    assert [answer.sequence_id for answer in answers] == list(range(first, first + count))
    return [getattr(answer, "message", "") for answer in answers]


def test_what_is_too_much_is_refused_in_its_order_and_an_end_makes_room(
    broker: RunningBroker,
) -> None:
    limit(broker, maxOpenMessages=3)
    with RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T)
        raw.create_producer(T)
        *stored, refused, also = outcomes(raw, txn_id, 5)
        assert stored == [""] * 3
        assert "open transactions in public/default (the policy transactionLimits) would" in refused
        assert "hold 4 messages; the limit is 3" in refused
        assert "hold 4 messages" in also
        assert not raw.end(txn_id, commit=False).HasField("error")
        assert outcomes(raw, begin(raw, T), 3, first=5) == [""] * 3


def test_refusals_are_counted_by_the_limits_name(broker: RunningBroker) -> None:
    limit(broker, maxOpenMessages=1)
    with RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T)
        raw.create_producer(T)
        assert [bool(answer) for answer in outcomes(raw, txn_id, 1)] == [False]
        assert [bool(answer) for answer in outcomes(raw, txn_id, 1, first=1)] == [True]
    metrics = httpx.get(f"{broker.admin_url}/metrics").text
    (line,) = (each for each in metrics.splitlines() if 'limit="transactionLimits"' in each)
    assert line.startswith("pybroker_limit_refusals_total") and float(line.split()[-1]) == 1


def test_the_error_is_the_one_that_clients_hand_to_the_publisher(
    broker: RunningBroker,
) -> None:
    limit(broker, maxOpenBytes=1)
    with RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T)
        raw.create_producer(T)
        answer = raw.publish(b"a", 0, txn_id)
        assert answer.error == pb.NotAllowedError
        assert "; the limit is 1: end some" in answer.message
        assert isinstance(raw.publish(b"plain", 1), pb.CommandSendReceipt)


def test_topics_of_a_namespace_count_together_and_each_by_itself(broker: RunningBroker) -> None:
    limit(broker, maxOpenMessages=3, maxOpenMessagesPerTopic=2)
    with RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T, U)
        for producer_id, topic in enumerate((T, U)):
            raw.create_producer(topic, producer_id)
        *_, too_many_here = outcomes(raw, txn_id, 3, producer_id=0)
        assert (
            f"{T} (the policy transactionLimits, PerTopic) would hold 3 messages" in too_many_here
        )
        one, too_many_there = outcomes(raw, txn_id, 2, producer_id=1)
        assert one == ""
        assert (
            "public/default (the policy transactionLimits) would hold 4 messages" in too_many_there
        )


def test_a_limit_that_is_set_while_transactions_are_open_counts_what_they_hold(
    broker: RunningBroker,
) -> None:
    with RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T)
        raw.create_producer(T)
        assert outcomes(raw, txn_id, 3, BIG) == [""] * 3
        limit(broker, maxOpenBytes=3000)
        assert outcomes(raw, txn_id, 1, first=3) != [""]
        limit(broker, maxOpenBytes=100_000)
        assert outcomes(raw, txn_id, 1, first=4) == [""]
        assert not raw.end(txn_id, commit=True).HasField("error")


def test_a_batch_counts_by_its_messages(broker: RunningBroker) -> None:
    limit(broker, maxOpenMessages=9)
    with RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T)
        raw.create_producer(T)
        fields: dict[str, Any] = {
            "send_fields": {"num_messages": 5},
            "num_messages_in_batch": 5,
        }
        assert isinstance(raw.publish(b"five", 0, txn_id, **fields), pb.CommandSendReceipt)
        assert (
            "hold 10 messages; the limit is 9" in raw.publish(b"five", 1, txn_id, **fields).message
        )


def test_the_python_client_s_application_hears_it_and_nothing_is_committed_in_part(
    broker: RunningBroker,
) -> None:
    limit(broker, maxOpenMessages=1)
    with Client(broker.service_url) as client:
        producer, txn = client.create_producer(T), client.new_transaction()
        producer.send(b"a", txn=txn)
        with pytest.raises(NotAllowed, match="hold 2 messages; the limit is 1"):
            producer.send(b"b", txn=txn)
        with pytest.raises(TransactionAborted, match="the limit is 1"):
            txn.commit()
        with client.new_transaction() as again:
            producer.send(b"c", txn=again)


def test_refused_messages_may_come_again_where_there_is_deduplication() -> None:
    settings = {
        "broker_deduplication_enabled": True,
        "max_open_transaction_messages_per_topic": 1,
    }
    with pybroker.testing.broker(**settings) as broker, RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T)
        raw.create_producer(T)
        stored, refused = outcomes(raw, txn_id, 2)
        assert (stored, bool(refused)) == ("", True)
        raw.end(txn_id, commit=True)
        receipt = raw.publish(b"a", 1, begin(raw, T))
        assert receipt.message_id.ledgerId != 2**64 - 1, "taken for a copy"


def test_a_principal_s_connections_count_together_and_a_superuser_s_not_at_all() -> None:
    settings: dict[str, Any] = TOKEN_SETTINGS | {
        "super_user_roles": ("admin",),
        "max_open_transaction_bytes_per_principal": 2500,
    }

    def login(role: str) -> RawClient:
        auth = token(role).encode()
        return RawClient(broker.service_url, auth_method_name="token", auth_data=auth)

    with pybroker.testing.broker(**settings) as broker:
        with login("alice") as one, login("alice") as other, login("bob") as bob:
            for raw, fits in ((one, True), (other, True), (other, False), (bob, True)):
                txn_id, sequence_id = begin(raw, T), 0 if fits else 1
                if fits:
                    raw.create_producer(T)
                (said,) = outcomes(raw, txn_id, 1, BIG, first=sequence_id)
                assert (said == "") == fits
            assert (
                "in the name of alice (maxOpenTransactionMessagesPerPrincipal and" in said or fits
            )
        with login("admin") as admin:
            txn_id = begin(admin, T)
            admin.create_producer(T)
            assert outcomes(admin, txn_id, 5, BIG) == [""] * 5


def test_after_a_restart_what_was_held_before_is_counted_again(tmp_path: Path) -> None:
    settings = {"max_open_transaction_messages_per_namespace": 100}

    def started() -> AbstractContextManager[RunningBroker]:
        return pybroker.testing.broker(data_dir=tmp_path, **settings)

    with started() as broker, RawClient(broker.service_url) as raw:
        txn_id = begin(raw, T)
        raw.create_producer(T)
        assert outcomes(raw, txn_id, 99) == [""] * 99
    with started() as broker, RawClient(broker.service_url) as raw:
        raw.create_producer(T)
        answers = [raw.publish(b"a", 99 + number, txn_id) for number in range(50)]
        assert any(isinstance(answer, pb.CommandSendError) for answer in answers), (
            "it began from nothing"
        )
        assert not raw.end(txn_id, commit=False).HasField("error")
        assert outcomes(raw, begin(raw, T), 100, first=200) == [""] * 100
