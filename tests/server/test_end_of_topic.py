"""Termination of a topic: which clients are told, and when."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient

from pybroker.base.errors import QuotaExceededError
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
JAVA = "Pulsar-Java-v4.0.4"


@pytest.fixture
def terminate(wire_broker: Any, topic: str) -> Callable[[], None]:
    async def work(running: Any) -> None:
        await (await running.topics.get(topic)).terminate()

    return lambda: wire_broker.call(work)


def fill(raw: RawClient, topic: str, count: int) -> list[Any]:
    raw.create_producer(topic)
    return [raw.publish(b"x", number).message_id for number in range(count)]


def ack(raw: RawClient, *ids: Any, kind: Any = pb.CommandAck.Individual) -> None:
    raw.request(_T.ACK, "ack", pb.CommandAck(consumer_id=1, ack_type=kind, message_id=ids))


def heard_the_end(raw: RawClient) -> bool:
    return _T.REACHED_END_OF_TOPIC in raw.kinds_before_pong()


@pytest.mark.parametrize("client", [JAVA, "pulsar-rs-v6.4.1"])
def test_who_has_acknowledged_everything_hears_of_the_end(
    connect: Connect, topic: str, terminate: Callable[[], None], client: str
) -> None:
    raw = connect(client_version=client)
    ids = fill(raw, topic, 2)
    raw.subscribe(topic)
    ack(raw, *ids)
    terminate()
    assert raw.receive(_T.REACHED_END_OF_TOPIC).consumer_id == 1


@pytest.mark.parametrize("kind", [pb.CommandAck.Individual, pb.CommandAck.Cumulative])
def test_who_is_behind_hears_of_the_end_when_the_last_message_is_acknowledged(
    connect: Connect, topic: str, terminate: Callable[[], None], kind: Any
) -> None:
    raw = connect(client_version=JAVA)
    ids = fill(raw, topic, 2)
    raw.subscribe(topic)
    terminate()
    ack(raw, ids[0], kind=kind)
    assert not heard_the_end(raw)
    ack(raw, ids[1], kind=kind)
    assert raw.receive(_T.REACHED_END_OF_TOPIC).consumer_id == 1


@pytest.mark.parametrize("kind", [pb.CommandAck.Individual, pb.CommandAck.Cumulative])
def test_who_acknowledges_the_last_message_in_a_transaction_hears_of_the_end_at_its_commit(
    connect: Connect, topic: str, terminate: Callable[[], None], kind: Any
) -> None:
    raw = connect(client_version=JAVA)
    ids = fill(raw, topic, 1)
    raw.subscribe(topic)
    terminate()
    txn_id = raw.new_txn()
    raw.add_subscription(txn_id, topic, "raw")
    acknowledgement = pb.CommandAck(
        consumer_id=1,
        ack_type=kind,
        message_id=ids,
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    raw.request(_T.ACK, "ack", acknowledgement)
    assert not heard_the_end(raw)
    raw.send_end(txn_id, commit=True)
    assert raw.receive(_T.REACHED_END_OF_TOPIC).consumer_id == 1


def test_who_comes_to_a_topic_that_has_ended_hears_of_it_once(
    connect: Connect, topic: str, terminate: Callable[[], None]
) -> None:
    terminated = connect(client_version=JAVA)
    terminated.subscribe(topic)
    terminate()
    raw = connect(client_version=JAVA)
    raw.subscribe(topic, subscription="later")
    assert raw.receive(_T.REACHED_END_OF_TOPIC).consumer_id == 1
    raw.flow(1)
    assert not heard_the_end(raw)


@pytest.mark.parametrize("client", ["Pulsar-CPP-v3.7.0", "Pulsar Go 0.14.0", "2.8.1", "raw"])
def test_clients_that_would_hang_up_are_not_told(
    connect: Connect, topic: str, terminate: Callable[[], None], client: str
) -> None:
    raw = connect(client_version=client)
    ids = fill(raw, topic, 1)
    raw.subscribe(topic)
    ack(raw, *ids)
    terminate()
    assert not heard_the_end(raw)


def test_who_is_let_go_hears_of_that_behind_the_receipts_on_the_way(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    """As when a quota is exceeded. Otherwise the client would resend stored messages."""
    raw.create_producer(topic)

    async def let_go_while_publishing(running: Any) -> None:
        found = await running.topics.get(topic)
        for number in range(3):
            raw.start_publish(b"x", number)
        while not found._on_the_way.count:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        found.producers.disconnect(QuotaExceededError("full"))
        assert await found._on_the_way.settled()

    wire_broker.call(let_go_while_publishing)
    kinds = raw.kinds_before_pong()
    receipts = kinds.count(_T.SEND_RECEIPT)
    assert receipts
    assert kinds == [_T.SEND_RECEIPT] * receipts + [_T.CLOSE_PRODUCER]


def test_what_was_on_its_way_is_answered_before_its_producer_is_closed(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    """Otherwise the client would take stored messages for lost."""
    raw.create_producer(topic)

    async def terminate_while_publishing(running: Any) -> None:
        found = await running.topics.get(topic)
        for number in range(3):
            raw.start_publish(b"x", number)
        while not found.messages_in:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        await found.terminate()

    wire_broker.call(terminate_while_publishing)
    kinds = raw.kinds_before_pong()
    receipts = kinds.count(_T.SEND_RECEIPT)
    assert receipts
    assert kinds == [_T.SEND_RECEIPT] * receipts + [_T.CLOSE_PRODUCER]
