"""Batches delivered without the messages that an open transaction has acknowledged.

Their clients acknowledge what they received as if it were the whole batch; official ones do.
"""

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient
from wire_consuming import ack, fill_batches

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
EVERY_KIND = pytest.mark.parametrize(
    "kind",
    [
        pb.CommandSubscribe.Shared,
        pb.CommandSubscribe.Key_Shared,
        pb.CommandSubscribe.Exclusive,
        pb.CommandSubscribe.Failover,
    ],
)
SINGLE = (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)
SIZE = 3
ALL, FIRST, REST = 0b111, 0b001, 0b110


def part(message_id: Any, unacked: int) -> Any:
    return pb.MessageIdData(
        ledgerId=message_id.ledgerId,
        entryId=message_id.entryId,
        ack_set=[unacked],
        batch_size=SIZE,
    )


def with_the_first_in_a_transaction(raw: RawClient, topic: str, kind: int) -> tuple[Any, TxnId]:
    """A batch whose first message an open transaction has acknowledged. The consumer has closed."""
    (batch,) = fill_batches(raw, topic, 1, SIZE)
    raw.subscribe(topic, subType=kind)
    raw.flow(SIZE)
    raw.receive(_T.MESSAGE)
    txn_id = raw.new_txn()
    raw.add_subscription(txn_id, topic, "raw")
    body = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[part(batch, ALL & ~FIRST)],
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    assert not raw.request(_T.ACK, "ack", body).HasField("error")
    raw.close_consumer()
    return batch, txn_id


def delivered(raw: RawClient, topic: str, kind: int) -> int:
    """The bits of the messages that a new consumer receives."""
    raw.subscribe(topic, subType=kind)
    raw.flow(SIZE - 1)
    ack_set = raw.receive(_T.MESSAGE).ack_set
    return ack_set[0] if ack_set else ALL


def given_in_part_and_then_whole(raw: RawClient, topic: str, kind: int) -> Any:
    """One consumer gets the batch in part, then whole: the transaction aborts in between. On
    Exclusive and Failover, only what the transaction had held comes then.
    """
    batch, txn_id = with_the_first_in_a_transaction(raw, topic, kind)
    assert delivered(raw, topic, kind) == REST
    assert not raw.end(txn_id, commit=False).HasField("error")
    raw.flow(SIZE)
    assert list(raw.receive(_T.MESSAGE).ack_set) == ([FIRST] if kind in SINGLE else [])
    return batch


def nothing_is_left(raw: RawClient, topic: str, kind: int) -> None:
    raw.subscribe(topic, subType=kind)
    raw.flow(SIZE)
    assert raw.waiting_messages() == 0


@EVERY_KIND
@pytest.mark.parametrize("whole", [True, False])
def test_what_an_aborted_transaction_held_is_not_acknowledged_with_the_rest(
    raw: RawClient, topic: str, kind: int, whole: bool
) -> None:
    """This holds if a client names the entry, or its indexes with the left-out ones as
    acknowledged.
    """
    batch, txn_id = with_the_first_in_a_transaction(raw, topic, kind)
    assert delivered(raw, topic, kind) == REST
    assert not raw.end(txn_id, commit=False).HasField("error")
    if whole:
        ack(raw, batch)
    else:
        ack(raw, part(batch, 0b100))
        ack(raw, part(batch, 0b000) if kind == pb.CommandSubscribe.Shared else batch)
    raw.close_consumer()
    assert delivered(raw, topic, kind) == FIRST


@EVERY_KIND
def test_what_a_committed_transaction_held_is_acknowledged_with_the_rest(
    raw: RawClient, topic: str, kind: int
) -> None:
    batch, txn_id = with_the_first_in_a_transaction(raw, topic, kind)
    assert delivered(raw, topic, kind) == REST
    assert not raw.end(txn_id, commit=True).HasField("error")
    ack(raw, batch)
    raw.close_consumer()
    nothing_is_left(raw, topic, kind)


@EVERY_KIND
def test_who_is_given_all_of_it_later_acknowledges_what_was_in_both_deliveries_and_then_all(
    raw: RawClient, topic: str, kind: int
) -> None:
    """It is unknown which delivery the first acknowledgement of the whole batch means."""
    batch = given_in_part_and_then_whole(raw, topic, kind)
    ack(raw, batch)
    raw.close_consumer()
    assert delivered(raw, topic, kind) == (ALL if kind in SINGLE else FIRST)
    ack(raw, batch)
    raw.close_consumer()
    nothing_is_left(raw, topic, kind)


@EVERY_KIND
def test_who_is_given_all_of_it_later_acknowledges_all_of_it_by_both_deliveries(
    raw: RawClient, topic: str, kind: int
) -> None:
    batch = given_in_part_and_then_whole(raw, topic, kind)
    ack(raw, batch)
    ack(raw, batch)
    raw.close_consumer()
    nothing_is_left(raw, topic, kind)
