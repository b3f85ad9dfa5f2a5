"""The participants of a transaction; only its coordinator decides their ends."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient
from scenario import assert_nothing_more, create_partitioned_topic, drain, subscribe

import pybroker.testing
from pybroker.base import errors
from pybroker.base.names import TxnId
from pybroker.broker.transactions.txn_participants import LocalParticipants
from pybroker.client import Client
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

NO_TOPIC = "persistent://public/default/x__transaction_pending_ack"


# -- participants


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NO_TOPIC, errors.NotAllowed.code),
        ("persistent://pulsar/system/__transaction_log_0", errors.NotAllowed.code),
        ("non-persistent://public/default/x", errors.NotAllowed.code),
        ("persistent://nobody/there/x", errors.TopicNotFound.code),
        ("persistent://public/default/x-partition-7", errors.NotAllowed.code),
        ("persistent://public/default/" + "x" * 1025, errors.InvalidTopicName.code),
        ("", errors.InvalidTopicName.code),
    ],
)
def test_what_cannot_end_a_transaction_is_not_added_to_one(
    raw: RawClient, topic: str, code: int
) -> None:
    txn_id = raw.new_txn()
    assert raw.add_partition(txn_id, topic).error == code
    assert raw.add_subscription(txn_id, topic, "sub").error == code
    assert not raw.end(txn_id, commit=True).HasField("error")


@pytest.mark.parametrize("subscription", ["", "s" * 1025])
def test_a_subscription_that_cannot_be_is_not_added(
    raw: RawClient, topic: str, subscription: str
) -> None:
    txn_id = raw.new_txn()
    answer = raw.add_subscription(txn_id, topic, subscription)
    assert answer.error == errors.NotAllowed.code
    assert "1 to 1024 characters" in answer.message
    assert not raw.end(txn_id, commit=True).HasField("error")


def test_a_partitioned_topic_itself_is_not_added_but_its_partitions_are(
    raw: RawClient, shared_broker: Any, topic: str
) -> None:
    create_partitioned_topic(shared_broker, topic, 2)
    txn_id = raw.new_txn()
    assert raw.add_partition(txn_id, topic).error == errors.NotAllowed.code
    assert not raw.add_partition(txn_id, f"{topic}-partition-1").HasField("error")
    assert not raw.end(txn_id, commit=True).HasField("error")


def test_the_longest_name_in_its_short_form_takes_part_and_ends(raw: RawClient) -> None:
    txn_id, topic = raw.new_txn(), "n" * 1024
    raw.create_producer(topic)
    assert not raw.add_partition(txn_id, topic).HasField("error")
    assert raw.publish(b"in", 0, txn_id).HasField("message_id")
    assert not raw.end(txn_id, commit=True).HasField("error")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_transaction_ends_without_what_an_older_version_let_into_it(
    topic: str, restarted: bool
) -> None:
    """Its log names participants that can never follow, so it could not end."""

    async def let_in(broker: Any) -> None:
        coordinator = await broker.coordinators.get(0)
        await coordinator.add_partitions(txn_id, [NO_TOPIC], None)
        await coordinator.add_subscriptions(txn_id, [(NO_TOPIC, "sub")], None)

    with pybroker.testing.broker(http=True) as broker:
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic)
            txn_id = raw.new_txn()
            raw.add_partition(txn_id, topic)
            raw.publish(b"in", 0, txn_id)
            broker.call(let_in)
        if restarted:
            broker.kill_and_restart()
        with RawClient(broker.service_url) as raw:
            assert not raw.end(txn_id, commit=True).HasField("error")
            raw.subscribe(topic)
            raw.flow(1)
            raw.receive(pb.BaseCommand.MESSAGE)
        url = f"{broker.admin_url}/admin/v3/transactions/coordinatorStats?coordinatorId=0"
        with urllib.request.urlopen(url, timeout=60) as answer:
            given_up = json.load(answer)["givenUp"]
        assert [(g["topic"], g["subscription"]) for g in given_up] == [
            (NO_TOPIC, None),
            (NO_TOPIC, "sub"),
        ]
        assert "not a topic" in given_up[0]["lastError"]


# -- undecided ends


def _end_on_partition(raw: RawClient, txn_id: TxnId, topic: str, action: Any) -> Any:
    body = pb.CommandEndTxnOnPartition(
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        topic=topic,
        txn_action=action,
    )
    kind = pb.BaseCommand.END_TXN_ON_PARTITION
    return raw.request(kind, "endTxnOnPartition", body)


def _end_on_subscription(raw: RawClient, txn_id: TxnId, topic: str, action: Any) -> Any:
    body = pb.CommandEndTxnOnSubscription(
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        subscription=pb.Subscription(topic=topic, subscription="sub"),
        txn_action=action,
    )
    kind = pb.BaseCommand.END_TXN_ON_SUBSCRIPTION
    return raw.request(kind, "endTxnOnSubscription", body)


@pytest.mark.parametrize("action", [pb.COMMIT, pb.ABORT])
def test_a_part_of_an_open_transaction_cannot_be_ended(
    client: Client, raw: RawClient, topics: Callable[[int], list[str]], action: Any
) -> None:
    one, other = topics(2)
    consumers = [subscribe(client, name) for name in (one, other)]
    producers = [client.create_producer(name) for name in (one, other)]
    txn = client.new_transaction()
    for producer in producers:
        producer.send(b"in", txn=txn)
    txn_id = TxnId(*txn.txn_id)
    refused = _end_on_partition(raw, txn_id, one, action)
    assert (refused.error, "did not decide" in refused.message) == (
        errors.InvalidTxnStatus.code,
        True,
    )
    refused = _end_on_subscription(raw, txn_id, one, action)
    assert refused.error == errors.InvalidTxnStatus.code
    if action == pb.COMMIT:
        txn.abort()
        for consumer in consumers:
            assert_nothing_more(consumer)
    else:
        txn.commit()
        assert [drain(consumer, 1) for consumer in consumers] == [[b"in"], [b"in"]]


def test_an_end_that_was_decided_may_be_repeated_on_a_part(raw: RawClient, topic: str) -> None:
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    raw.end(txn_id, commit=True)
    assert not _end_on_partition(raw, txn_id, topic, pb.COMMIT).HasField("error")
    assert not _end_on_subscription(raw, txn_id, topic, pb.COMMIT).HasField("error")
    opposite = _end_on_partition(raw, txn_id, topic, pb.ABORT)
    assert opposite.error == errors.InvalidTxnStatus.code


def test_a_part_of_an_unknown_transaction_is_not_ended(raw: RawClient, topic: str) -> None:
    txn_id = TxnId(raw.new_txn().most, 2**40)
    for end in (_end_on_partition, _end_on_subscription):
        assert end(raw, txn_id, topic, pb.ABORT).error == errors.TransactionNotFound.code


def test_a_log_of_transactions_is_no_part_of_one(raw: RawClient) -> None:
    txn_id = raw.new_txn()
    raw.end(txn_id, commit=True)
    for end in (_end_on_partition, _end_on_subscription):
        refused = end(raw, txn_id, NO_TOPIC, pb.COMMIT)
        assert refused.error == errors.NotAllowed.code
        assert "is a transaction log, not a topic" in refused.message


def test_only_parts_that_a_transaction_has_are_ended(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    def hang(self: Any, *arguments: Any) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    with pybroker.testing.broker() as broker, RawClient(broker.service_url) as raw:
        txn_id = raw.new_txn()
        raw.add_partition(txn_id, topic)
        with monkeypatch.context() as patch:
            patch.setattr(LocalParticipants, "end_on_partition", hang)
            raw.send_end(txn_id, commit=True)
            raw.kinds_before_pong()
        broker.wait_until(lambda: _status(broker, txn_id) is TxnStatus.COMMITTING)
        for end in (_end_on_partition, _end_on_subscription):
            assert end(raw, txn_id, f"{topic}-2", pb.COMMIT).error == errors.InvalidTxnStatus.code
        broker.kill()


def _status(broker: Any, txn_id: TxnId) -> TxnStatus | None:
    async def look(running: Any) -> TxnStatus | None:
        found: TxnStatus | None = running.coordinators.status(txn_id)
        return found

    status: TxnStatus | None = broker.call(look)
    return status
