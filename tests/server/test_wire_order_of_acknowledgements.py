"""Acknowledgements of one transaction that a client sends without waiting for answers: each goes
further than the one before, so they are held in the order in which they were sent.
"""

from typing import Any

import pytest
from raw_client import RawClient
from wire_consuming import fill, fill_batches

from pybroker.base.names import TxnId
from pybroker.broker.persistent.topic import Topic
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
SIZE = 4
ALL = (1 << SIZE) - 1


def up_to(message_id: Any, index: int, **fields: Any) -> pb.CommandAck:
    """As Java's client: the last message of a batch is named as the whole batch."""
    left = ALL & ~((2 << index) - 1)
    named = pb.MessageIdData(ledgerId=message_id.ledgerId, entryId=message_id.entryId)
    if left:
        named.ack_set.append(left)
        named.batch_size = SIZE
    return pb.CommandAck(
        consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=[named], **fields
    )


def acknowledge_together(raw: RawClient, topic: str, *acks: pb.CommandAck) -> list[str]:
    """The messages of the answers, in one transaction; then it commits."""
    txn_id: TxnId = raw.new_txn()
    raw.add_subscription(txn_id, topic, "raw")
    with raw.in_one_piece():
        for ack in acks:
            ack.txnid_most_bits, ack.txnid_least_bits = txn_id
            raw.start_request(_T.ACK, "ack", ack)
    answers = [raw.receive(_T.ACK_RESPONSE).message for _ in acks]
    assert not raw.end(txn_id, commit=True).HasField("error")
    return answers


@pytest.mark.parametrize("on_disk", [False, True], ids=["known", "on disk"])
@pytest.mark.parametrize("already", [False, True], ids=["first", "later"])
def test_within_a_batch_and_to_its_end(
    raw: RawClient, topic: str, on_disk: bool, already: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`already`: the subscription has its pending-ack log."""
    batches = fill_batches(raw, topic, 3, SIZE)
    raw.subscribe(topic)
    raw.flow(3 * SIZE)
    raw.messages(3)
    if already:
        assert acknowledge_together(raw, topic, up_to(batches[0], SIZE - 1)) == [""]
    if on_disk:
        monkeypatch.setattr(Topic, "known_message_count", lambda *_: None)
    acks = [up_to(batches[1], 1), up_to(batches[1], SIZE - 1), up_to(batches[2], 0)]
    assert acknowledge_together(raw, topic, *acks) == ["", "", ""]
    raw.close_consumer()
    raw.subscribe(topic)
    raw.flow(SIZE)
    assert list(raw.receive(_T.MESSAGE).ack_set) == [ALL & ~1]


def test_named_one_by_one_and_by_a_range(raw: RawClient, topic: str) -> None:
    """As this project's client: each acknowledgement says what it covers."""
    ids = fill(raw, topic, 3)
    raw.subscribe(topic)
    raw.flow(3)
    raw.messages(3)
    acks = []
    for message_id in ids:
        ack = up_to(message_id, SIZE - 1)
        ack.covered.runs.add(
            ledgerId=message_id.ledgerId,
            firstEntryId=message_id.entryId,
            lastEntryId=message_id.entryId,
        )
        acks.append(ack)
    assert acknowledge_together(raw, topic, *acks) == ["", "", ""]
