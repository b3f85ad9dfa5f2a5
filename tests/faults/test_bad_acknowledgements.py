"""The sizes in an acknowledgement are checked against the entry before memory depends on them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from managed_ledger.config import MAX_MESSAGES_PER_ENTRY
from managed_ledger.cursor import ManagedCursor
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import CursorRecord, LedgerInfo
from managed_ledger.position import Position
from pybroker.base.names import TopicName, TxnId
from pybroker.transaction.pending_acks.records import AckRecord, PendingAck
from pybroker.transaction.pending_acks.store import decode_entry, encode_entry
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

_T = pb.BaseCommand
TOPIC = "persistent://public/default/acknowledged"
MOST = 2**31 - 1
SHARED = pb.CommandSubscribe.Shared


@pytest.fixture
def broker() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Any) -> Iterator[RawClient]:
    with RawClient(broker.service_url) as client:
        client.create_producer(TOPIC)
        client.subscribe(TOPIC, subscription="s", subType=SHARED)
        yield client


def publish(client: RawClient, messages: int) -> pb.MessageIdData:
    """Publish one entry with this number of messages."""
    receipt = client.publish(
        b"x", 0, send_fields={"num_messages": messages}, num_messages_in_batch=messages
    )
    return receipt.message_id


def named(message_id: pb.MessageIdData, *ack_set: int, batch_size: int = MOST) -> Any:
    return pb.MessageIdData(
        ledgerId=message_id.ledgerId,
        entryId=message_id.entryId,
        ack_set=ack_set,
        batch_size=batch_size,
    )


def ack(client: RawClient, *ids: Any, **fields: Any) -> Any:
    body = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids, **fields)
    return client.request(_T.ACK, "ack", body)


def begin(client: RawClient) -> TxnId:
    txn_id = client.new_txn()
    body = pb.CommandAddSubscriptionToTxn(
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        subscription=[pb.Subscription(topic=TOPIC, subscription="s")],
    )
    assert not client.request(_T.ADD_SUBSCRIPTION_TO_TXN, "addSubscriptionToTxn", body).HasField(
        "error"
    )
    return txn_id


def in_transaction(client: RawClient, *ids: Any) -> Any:
    txn_id = begin(client)
    return ack(client, *ids, txnid_most_bits=txn_id.most, txnid_least_bits=txn_id.least)


def partial_batches(broker: Any) -> dict[Any, int]:
    async def look(running: Any) -> dict[Any, int]:
        topic = await running.topics.get(TopicName.parse(TOPIC))
        return dict(topic.subscriptions["s"].cursor.partial_batches)

    return dict(broker.call(look))


@pytest.mark.parametrize("acknowledge", [ack, in_transaction])
def test_more_messages_than_the_entry_holds_are_refused(
    broker: Any, client: RawClient, acknowledge: Any
) -> None:
    assert acknowledge(client, named(publish(client, 1), -2)).HasField("error")
    assert partial_batches(broker) == {}


def test_a_batch_is_as_large_as_its_entry_whatever_the_client_says(
    broker: Any, client: RawClient
) -> None:
    message_id = publish(client, 4)
    assert not ack(client, named(message_id, 0b0111)).HasField("error")
    assert list(partial_batches(broker).values()) == [0b0111]


def test_a_transaction_takes_no_more_than_the_batch_has(broker: Any, client: RawClient) -> None:
    message_id = publish(client, 4)
    assert not in_transaction(client, named(message_id, 0b0111)).HasField("error")

    async def pending(running: Any) -> int:
        topic = await running.topics.get(TopicName.parse(TOPIC))
        acks = topic.subscriptions["s"].pending_acks
        return int(acks.pending_indexes(Position(message_id.ledgerId, message_id.entryId)))

    assert broker.call(pending) == 0b1000


def test_a_transaction_acknowledges_no_message_that_was_never_there(client: RawClient) -> None:
    message_id = publish(client, 1)
    nowhere = pb.MessageIdData(ledgerId=max(0, message_id.ledgerId - 1), entryId=2**40)
    assert in_transaction(client, nowhere).error == pb.TransactionConflict


def test_a_transaction_takes_a_bounded_number_of_acknowledgements_at_once(
    client: RawClient,
) -> None:
    answer = in_transaction(client, *[publish(client, 1)] * 10_001)
    assert answer.error == pb.NotAllowedError


def test_a_transaction_takes_parts_of_a_bounded_number_of_messages_at_once(
    client: RawClient,
) -> None:
    ids = [named(publish(client, 1_000_000), 1) for _ in range(51)]
    assert in_transaction(client, *ids).error == pb.NotAllowedError
    assert not in_transaction(client, *ids[:50]).HasField("error")


def turns_taken(broker: Any, client: RawClient, frame: bytes) -> int:
    """The number of loop turns until a PING after `frame` was answered."""

    async def receive(running: Any) -> int:
        (session,) = running.server.sessions
        written: list[bytes] = []
        session.write, write = written.append, session.write
        session._inbox.receive(frame + encode_frame(_T(type=_T.PING, ping=pb.CommandPing())))
        turns = 0
        while not any(b"\x08\x13" in piece for piece in written):  # type: PONG
            await asyncio.sleep(0)
            turns += 1
        session.write = write
        return turns

    return int(broker.call(receive))


def test_others_are_served_while_a_long_acknowledgement_is_worked_off(
    broker: Any, client: RawClient
) -> None:
    message_id = publish(client, 1)
    body = pb.CommandAck(
        consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id] * 50_000
    )
    assert turns_taken(broker, client, encode_frame(_T(type=_T.ACK, ack=body))) >= 49


def test_others_are_served_while_a_long_redelivery_is_worked_off(
    broker: Any, client: RawClient
) -> None:
    message_id = publish(client, 1)
    body = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=1, message_ids=[message_id] * 50_000
    )
    command = _T(type=_T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=body)
    assert turns_taken(broker, client, encode_frame(command)) >= 49


def test_others_are_served_between_commands_that_came_in_one_piece(
    broker: Any, client: RawClient
) -> None:
    flow = encode_frame(_T(type=_T.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=1)))
    assert turns_taken(broker, client, flow * 6400) >= 99


def test_a_cursor_of_impossible_bitsets_is_opened_within_bounds() -> None:
    index = LedgerIndex([LedgerInfo(3, 2, 10, 1)], 4)
    cursor = ManagedCursor("s", index, Position(3, -1), {})
    huge = 1 << (2 * MAX_MESSAGES_PER_ENTRY)
    batches = {(3, 0): huge | 0b10, (3, 1): huge, (9, 9): 0b1}
    cursor.restore(CursorRecord(Position(3, -1), {}, {}, batches))
    assert cursor.partial_batches == {(3, 0): 0b10}


def test_an_impossible_pending_acknowledgement_is_read_within_bounds() -> None:
    stored = PendingAck(Position(3, 0), 0b10 | 1 << (2 * MAX_MESSAGES_PER_ENTRY), MOST)
    (record,) = decode_entry(encode_entry([AckRecord(TxnId(0, 0), False, [stored])]), "a log")
    assert isinstance(record, AckRecord)
    (read,) = record.acks
    assert read.acked_indexes.bit_length() <= MAX_MESSAGES_PER_ENTRY
    assert read.still_unacked == 0b10
