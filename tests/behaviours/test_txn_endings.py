"""How transactions end: once, even if the request is repeated, late, or from a stranger."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient
from scenario import IN_LOG_ORDER, assert_nothing_more, delete_topic, drain, subscribe

import pybroker.testing
from pybroker.base import errors
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TxnId
from pybroker.broker.transactions.txn_participants import LocalParticipants
from pybroker.client import Client, InvalidTxnStatus, TransactionConflict, TransactionNotFound
from pybroker.transaction.this_turn import WouldWait
from pybroker.wire import pulsar_api_pb2 as pb


@IN_LOG_ORDER
def test_a_timeout_aborts_and_a_later_commit_fails(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction(timeout_ms=60_000)
    producer.send(b"too slow", txn=txn)
    producer.send(b"plain")
    shared_broker.clock.advance("61s")
    assert drain(consumer, 1) == [b"plain"], "the abort lets the message behind it through"
    with pytest.raises((InvalidTxnStatus, TransactionNotFound)):
        txn.commit()
    assert_nothing_more(consumer)


@IN_LOG_ORDER
def test_a_raw_transaction_times_out_after_its_milliseconds(
    client: Client, shared_broker: Any, raw: RawClient, topic: str
) -> None:
    consumer = subscribe(client, topic)
    raw.create_producer(topic)
    txn_id = raw.new_txn(timeout_ms=60_000)
    raw.add_partition(txn_id, topic)
    raw.publish(b"in", 0, txn_id)
    raw.publish(b"behind", 1)
    shared_broker.clock.advance("59s")
    assert_nothing_more(consumer)
    shared_broker.clock.advance("2s")
    assert drain(consumer, 1) == [b"behind"]
    assert raw.end(txn_id, commit=True).error == errors.InvalidTxnStatus.code


@pytest.mark.parametrize("commit", [True, False])
def test_the_same_end_twice_succeeds_twice(raw: RawClient, commit: bool) -> None:
    txn_id = raw.new_txn()
    assert not raw.end(txn_id, commit).HasField("error")
    assert not raw.end(txn_id, commit).HasField("error")


@pytest.mark.parametrize("commit", [True, False])
def test_the_opposite_end_is_refused(raw: RawClient, commit: bool) -> None:
    txn_id = raw.new_txn()
    assert not raw.end(txn_id, commit).HasField("error")
    assert raw.end(txn_id, not commit).error == errors.InvalidTxnStatus.code


def test_ends_raced_on_one_connection_agree_on_one_outcome(raw: RawClient) -> None:
    txn_id = raw.new_txn()
    for number in range(20):
        raw.send_end(txn_id, commit=number % 2 == 0)
    answers = [raw.receive(pb.BaseCommand.END_TXN_RESPONSE) for _ in range(20)]
    assert sum(not answer.HasField("error") for answer in answers) == 10
    refused = {answer.error for answer in answers if answer.HasField("error")}
    assert refused == {errors.InvalidTxnStatus.code}


def test_an_unknown_transaction_is_not_found(raw: RawClient) -> None:
    assert raw.end(TxnId(0, 2**40), commit=True).error == errors.TransactionNotFound.code


def test_an_unknown_coordinator_is_not_found(raw: RawClient) -> None:
    answer = raw.end(TxnId(9999, 0), commit=True)
    assert answer.error == errors.TransactionCoordinatorNotFound.code


def test_nothing_can_be_added_after_the_end(raw: RawClient, topic: str) -> None:
    txn_id = raw.new_txn()
    raw.end(txn_id, commit=True)
    assert raw.add_partition(txn_id, topic).error == errors.InvalidTxnStatus.code


def test_an_empty_transaction_commits(client: Client) -> None:
    txn = client.new_transaction()
    txn.commit()


def test_ids_are_never_reused_across_a_restart() -> None:
    with pybroker.testing.broker() as broker:
        with RawClient(broker.service_url) as raw:
            before = [raw.new_txn() for _ in range(5)]
            for txn_id in before:
                raw.end(txn_id, commit=True)
        broker.restart()
        with RawClient(broker.service_url) as raw:
            assert raw.new_txn().least > max(txn_id.least for txn_id in before)


def test_an_end_is_idempotent_across_a_restart() -> None:
    with pybroker.testing.broker() as broker:
        with RawClient(broker.service_url) as raw:
            committed, aborted = raw.new_txn(), raw.new_txn()
            raw.end(committed, commit=True)
            raw.end(aborted, commit=False)
        broker.restart()
        with RawClient(broker.service_url) as raw:
            assert not raw.end(committed, commit=True).HasField("error")
            assert raw.end(committed, commit=False).error == errors.InvalidTxnStatus.code
            assert not raw.end(aborted, commit=False).HasField("error")


@IN_LOG_ORDER
@pytest.mark.parametrize("stop", ["restart", "kill_and_restart"])
def test_an_open_transaction_goes_on_after_a_restart(topic: str, stop: str) -> None:
    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        producer = client.create_producer(topic)
        consumer = subscribe(client, topic)
        txn = client.new_transaction()
        producer.send(b"before", txn=txn)
        getattr(broker, stop)()
        producer.send(b"plain")  # sent again until the client is back; a transaction's is not
        producer.send(b"after", txn=txn)
        assert_nothing_more(consumer)
        txn.commit()
        assert drain(consumer, 3) == [b"before", b"plain", b"after"]
        client.close()


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_was_ending_completes_unaided_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, topic: str, commit: bool
) -> None:
    reached: list[str] = []

    def hang(self: Any, *arguments: Any) -> asyncio.Future[None]:
        *_, not_later = arguments
        if not_later:
            raise WouldWait
        reached.append("participant")
        return asyncio.get_running_loop().create_future()

    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        producer = client.create_producer(topic)
        consumer = subscribe(client, topic)
        txn = client.new_transaction()
        producer.send(b"in", txn=txn)
        with RawClient(broker.service_url) as raw, monkeypatch.context() as patch:
            patch.setattr(LocalParticipants, "end_on_partition", hang)
            raw.send_end(TxnId(*txn.txn_id), commit)
            broker.wait_until(lambda: bool(reached))
            broker.kill()
        broker.restart()
        producer.send(b"plain")
        assert drain(consumer, 2 if commit else 1) == ([b"in"] if commit else []) + [b"plain"]
        client.close()


def test_a_topic_that_was_deleted_does_not_stop_the_commit(
    client: Client, shared_broker: Any, topics: Callable[[int], list[str]]
) -> None:
    kept, deleted = topics(2)
    consumer = subscribe(client, kept)
    producers = [client.create_producer(name) for name in (kept, deleted)]
    txn = client.new_transaction()
    for producer in producers:
        producer.send(b"in", txn=txn)
    producers[1].close()
    delete_topic(shared_broker, deleted)
    txn.commit()
    assert drain(consumer, 1) == [b"in"]


def test_a_failed_operation_fails_the_commit(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"once")
    message = consumer.receive(timeout_millis=30_000)
    first, second = client.new_transaction(), client.new_transaction()
    consumer.acknowledge(message, txn=first)
    producer.send(b"out", txn=second)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(message, txn=second)
    with pytest.raises(Exception):  # noqa: B017 - any refusal will do, a success would not
        second.commit()
    first.commit()
    assert_nothing_more(consumer)


def test_active_transactions_are_limited(topic: str) -> None:
    config = BrokerConfig(max_active_transactions_per_coordinator=3)
    with (
        pybroker.testing.broker(config=config) as broker,
        RawClient(broker.service_url) as raw,
    ):
        open_ones = [raw.new_txn() for _ in range(3)]
        assert raw.try_new_txn().error == errors.TooManyRequests.code
        raw.end(open_ones[0], commit=True)
        assert not raw.try_new_txn().HasField("error")


def test_coordinators_can_be_added_by_the_admin_api() -> None:
    config = BrokerConfig(transaction_coordinators=1)
    with (
        pybroker.testing.broker(http=True, config=config) as broker,
        RawClient(broker.service_url) as raw,
    ):
        missing = raw.try_new_txn(tc_id=2)
        assert missing.error == errors.TransactionCoordinatorNotFound.code
        request = urllib.request.Request(
            f"{broker.admin_url}/admin/v3/transactions/transactionCoordinator/replicas",
            data=json.dumps(3).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 204
        assert raw.new_txn(tc_id=2).most == 2


def test_a_client_goes_on_when_its_coordinator_was_opened_anew(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"before", txn=txn)

    async def lose_the_log(broker: Any) -> None:
        coordinator = await broker.coordinators.get(txn.txn_id.most)
        coordinator._fail(RuntimeError("another broker took the log over"))

    shared_broker.call(lose_the_log)
    txn.commit()
    assert drain(consumer, 1) == [b"before"]
