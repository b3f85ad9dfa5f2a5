"""What a client was given before its subscription's first transaction, and an unload after that."""

from typing import Any

import pytest
from raw_client import RawClient
from wire_consuming import entry_ids, fill

from pybroker.base.names import TopicName, TxnId, pending_ack_log
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
