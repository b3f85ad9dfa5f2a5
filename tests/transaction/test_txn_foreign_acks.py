"""Pending acknowledgements logged by Apache Pulsar's broker: reading them and taking them over."""

from unittest.mock import patch

import pytest
from txn_world import ABORT, COMMIT, ORDERS, World, in_world

from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from managed_ledger.storage.backend import BARE
from pybroker.base.names import TopicName, TxnId, foreign_pending_ack_log
from pybroker.transaction.pending_acks import migration
from pybroker.transaction.pending_acks.pulsar_log import decode_pulsar
from pybroker.transaction.pending_acks.records import AckRecord, EndRecord, PendingAck, Record

TOPIC = TopicName.parse(ORDERS)
TXN = TxnId(3, 5)


@pytest.mark.parametrize(
    ("stored", "record"),
    [
        (
            "08011000180520032a04080710092a0408071002",
            AckRecord(TXN, False, (PendingAck(Position(7, 9)), PendingAck(Position(7, 2)))),
        ),
        (
            "08011000180520032a080807100918062003",
            AckRecord(TXN, False, (PendingAck(Position(7, 9), 0b110, 3),)),
        ),
        (
            "08011000180520032a130807100918ffffffffffffffffff0118012041",
            AckRecord(TXN, False, (PendingAck(Position(7, 9), (1 << 65) - 1, 65),)),
        ),
        (
            "08011001180520032a0408071009",
            AckRecord(TXN, True, (PendingAck(Position(7, 9)),)),
        ),
        ("080218052003", EndRecord(TXN, COMMIT)),
        ("080318052003", EndRecord(TXN, ABORT)),
    ],
)
def test_a_record_of_apache_s_is_read(stored: str, record: Record) -> None:
    message = bytes.fromhex(stored)
    assert decode_pulsar(message, "test") == [record]
    both = bytes.fromhex("0e010001") + (b"\x0a" + bytes([len(message)]) + message) * 2
    assert decode_pulsar(both, "test") == [record, record]


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        ("08041805", "has the operation 4"),
        ("080110011805", "cumulative acknowledgement of 0 messages"),
        ("08012a0b08ffffffffffffffffff01", "the negative number -1"),
        ("08012a04", "ends within field 5"),
    ],
)
def test_what_apache_s_broker_does_not_write_is_refused(stored: str, what: str) -> None:
    with pytest.raises(CorruptStorage, match=what):
        decode_pulsar(bytes.fromhex(stored), "the log")


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def ack(txn_id: TxnId, position: Position) -> bytes:
    inner = b"\x08" + varint(position.ledger_id) + b"\x10" + varint(position.entry_id)
    ids = b"\x18" + varint(txn_id.least) + b"\x20" + varint(txn_id.most)
    return b"\x08\x01\x10\x00" + ids + b"\x2a" + bytes([len(inner)]) + inner


async def left_by_apache(world: World, subscription: str, *entries: bytes) -> None:
    log = await world.factory.open(foreign_pending_ack_log(TOPIC, subscription))
    await log.open_cursor("__pending_ack_state", None)
    for entry in entries:
        await log.append_one(entry, 1, BARE)


@in_world
async def test_what_apache_s_broker_held_is_held_until_its_transaction_ends(world: World) -> None:
    first, second, third = [await world.send(None, each) for each in "abc"]
    await world.cursor("a b")
    left_open, committed = await world.begin_acking("a b"), await world.begin_acking("a b")
    ended = b"\x08\x02\x18" + varint(committed.least) + b"\x20" + varint(committed.most)
    await left_by_apache(
        world, "a b", ack(left_open, first), ack(committed, second), ended, ack(committed, third)
    )
    acks = await world.acks("a b")
    cursor = await world.cursor("a b")
    assert acks.is_pending(*first) and cursor.is_deleted(second)
    assert not world.factory.exists(foreign_pending_ack_log(TOPIC, "a b"))
    await world.end(left_open, COMMIT)
    assert cursor.is_deleted(first)
    world = await world.restarted()
    assert (await world.cursor("a b")).is_deleted(first)


@in_world
async def test_a_log_that_may_be_another_subscription_s_is_left_alone(world: World) -> None:
    other = "persistent://public/default/orders-eu"
    position = await world.send(None, "a")
    await world.cursor("eu-billing")
    await world.cursor("billing", other)
    txn_id = await world.begin_acking("eu-billing")
    await left_by_apache(world, "eu-billing", ack(txn_id, position))
    with patch.object(migration.log, "error") as said:
        acks = await world.acks("eu-billing")
    assert not acks.is_pending(*position)
    assert world.factory.exists(foreign_pending_ack_log(TOPIC, "eu-billing"))
    assert "is the log of several subscriptions" in said.call_args.args[0]
