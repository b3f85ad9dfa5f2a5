"""What a client was given before its subscription's first transaction, and an unload after that."""

import asyncio
import threading
from typing import Any

import pytest
from raw_client import RawClient
from wire_consuming import entry_ids, fill

from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction.pending_acks.life_log import LifeLog
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
EXCLUSIVE, FAILOVER = pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover
SHARED = pb.CommandSubscribe.Shared


def connect_to_coordinator(raw: RawClient) -> None:
    """Java's clients do so before they subscribe, if they have transactions enabled."""
    body = pb.CommandTcClientConnectRequest(tc_id=0)
    answer = raw.request(_T.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", body)
    assert not answer.HasField("error")


def acknowledge_up_to(raw: RawClient, topic: str, message_id: Any, txn_id: TxnId) -> Any:
    raw.add_subscription(txn_id, topic, "raw")
    body = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Cumulative,
        message_id=[message_id],
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    return raw.request(_T.ACK, "ack", body)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_a_client_that_transacts_is_known_after_an_unload_before_its_first_transaction(
    raw: RawClient, topic: str, wire_broker: Any, kind: Any
) -> None:
    """It has a message that comes again meanwhile: an acknowledgement of the first delivery is
    accepted, and one that may mean the second is not.
    """
    ids = fill(raw, topic, 3)
    connect_to_coordinator(raw)
    raw.subscribe(topic, subType=kind, consumer_name="c")
    raw.flow(1)
    assert entry_ids(raw, 1) == [0]
    wire_broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    raw.receive(_T.CLOSE_CONSUMER)
    raw.subscribe(topic, subType=kind, consumer_name="c")
    raw.flow(2)
    assert len(entry_ids(raw, 2)) == 2
    first, second = raw.new_txn(), raw.new_txn()
    assert not acknowledge_up_to(raw, topic, ids[0], first).HasField("error")
    assert not raw.end(first, commit=True).HasField("error")
    assert acknowledge_up_to(raw, topic, ids[1], second).error == pb.TransactionConflict


def request_redelivery(raw: RawClient, epoch: int) -> None:
    body = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, consumer_epoch=epoch)
    raw.send(_T.REDELIVER_UNACKNOWLEDGED_MESSAGES, "redeliverUnacknowledgedMessages", body)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
@pytest.mark.parametrize("epoch", [0, 1])
def test_who_requested_redelivery_while_away_has_dropped_everything_also_after_an_unload(
    raw: RawClient, topic: str, wire_broker: Any, kind: Any, epoch: int
) -> None:
    """Java's client tells so by the epoch of its next SUBSCRIBE. With the same epoch it may have
    what it was given before the unload.
    """
    ids = fill(raw, topic, 3)
    connect_to_coordinator(raw)
    raw.subscribe(topic, subType=kind, consumer_name="c", consumer_epoch=0)
    raw.flow(3)
    raw.messages(3)
    wire_broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    raw.receive(_T.CLOSE_CONSUMER)
    raw.subscribe(topic, subType=kind, consumer_name="c", consumer_epoch=epoch)
    raw.flow(3)
    raw.messages(3)
    first, second = raw.new_txn(), raw.new_txn()
    assert not acknowledge_up_to(raw, topic, ids[0], first).HasField("error")
    assert not raw.end(first, commit=True).HasField("error")
    refused = acknowledge_up_to(raw, topic, ids[1], second).HasField("error")
    assert refused is (epoch == 0)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_a_request_for_redelivery_is_followed_once_its_epoch_is_durable(
    raw: RawClient, topic: str, wire_broker: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client that returns after a crash would seem to have dropped what it was given
    in the new epoch.
    """
    asked, durable, note = threading.Event(), list[asyncio.Future[None]](), LifeLog.note

    def held_up(log: LifeLog, life: Any, is_gone: bool = False) -> asyncio.Future[None]:
        noted = note(log, life, is_gone)
        if life.record.epoch < 1:
            return noted
        durable.append(asyncio.get_running_loop().create_future())
        asked.set()
        return durable[0]

    monkeypatch.setattr(LifeLog, "note", held_up)
    fill(raw, topic, 1)
    connect_to_coordinator(raw)
    raw.subscribe(topic, subType=kind, consumer_epoch=0)
    raw.flow(2)
    raw.messages(1)
    subscription = wire_broker.call(lambda running: _subscription(running, topic))
    request_redelivery(raw, 1)
    assert asked.wait(30)
    wire_broker.call(lambda _: asyncio.sleep(0.01))
    assert subscription.consumers[0].messages_out == 1
    wire_broker.call(lambda _: _complete(durable[0]))
    assert raw.receive(_T.MESSAGE).consumer_epoch == 1


async def _subscription(running: Any, topic: str) -> Any:
    return (await running.topics.get(topic)).subscriptions["raw"]


async def _complete(durable: asyncio.Future[None]) -> None:
    durable.set_result(None)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED])
@pytest.mark.parametrize("transacts", [True, False])
def test_a_subscription_gets_a_log_for_clients_that_transact_and_could_acknowledge_up_to_a_message(
    raw: RawClient, topic: str, wire_broker: Any, kind: Any, transacts: bool
) -> None:
    fill(raw, topic, 1)
    if transacts:
        connect_to_coordinator(raw)
    raw.subscribe(topic, subType=kind)
    assert wire_broker.call(lambda running: _has_log(running, topic)) is (
        transacts and kind != SHARED
    )


async def _has_log(running: Any, topic: str) -> bool:
    served = await running.topics.get(topic)
    there: bool = served.factory.exists(pending_ack_log(TopicName.parse(topic), "raw"))
    return there
