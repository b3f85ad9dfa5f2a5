"""SEEK: by id, into a batch, by time."""

from typing import Any

import pytest
from raw_client import RawClient
from wire_consuming import ack, consumer_stats, entry_ids, fill, fill_batches, reader, seek

import pybroker.testing
from managed_ledger.position import EARLIEST, Position
from pybroker.broker.persistent.topic import Topic
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand


def test_a_seek_by_id_goes_to_that_message_and_makes_consumers_come_again(
    raw: RawClient, topic: str
) -> None:
    ids = fill(raw, topic, 4)
    raw.subscribe(topic)
    raw.flow(10)
    raw.messages(4)
    assert isinstance(seek(raw, message_id=ids[1]), pb.CommandSuccess)
    assert raw.receive(_T.CLOSE_CONSUMER).request_id == 2**64 - 1
    raw.subscribe(topic)
    raw.flow(10)
    assert entry_ids(raw, 3) == [1, 2, 3]


def test_a_seek_into_a_batch_leaves_out_what_is_before(raw: RawClient, topic: str) -> None:
    """The place is named as by the Java client. The messages before it are never owed to it."""
    ids = fill_batches(raw, topic, 2, size=4)
    raw.subscribe(topic)
    place = pb.MessageIdData(ledgerId=ids[1].ledgerId, entryId=1, ack_set=[0b1100])
    assert isinstance(seek(raw, message_id=place), pb.CommandSuccess)
    raw.subscribe(topic)
    raw.flow(10)
    (message,) = raw.messages(1)
    assert (message.message_id.entryId, list(message.ack_set)) == (1, [0b1100])
    rest = pb.MessageIdData(ledgerId=ids[1].ledgerId, entryId=1, ack_set=[0b0011])
    ack(raw, rest)
    assert consumer_stats(raw).msgBacklog == 0


def test_a_seek_into_a_batch_goes_to_its_beginning_without_batch_indexes(topic: str) -> None:
    settings = {"acknowledgment_at_batch_index_level_enabled": False}
    with pybroker.testing.broker(**settings) as broker, RawClient(broker.service_url) as raw:
        (message_id,) = fill_batches(raw, topic, 1, size=4)
        raw.subscribe(topic)
        place = pb.MessageIdData(ledgerId=message_id.ledgerId, entryId=0, ack_set=[0b1100])
        seek(raw, message_id=place)
        raw.subscribe(topic)
        raw.flow(10)
        (message,) = raw.messages(1)
        assert (message.message_id.entryId, list(message.ack_set)) == (0, [])


def test_a_seek_names_a_place(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic)
    assert seek(raw).error == pb.MetadataError


@pytest.mark.parametrize(("time_ms", "first"), [(0, 0), (1002, 2), (1003, 3)])
def test_a_seek_by_time_is_inclusive(raw: RawClient, topic: str, time_ms: int, first: int) -> None:
    fill(raw, topic, 4)
    raw.subscribe(topic)
    seek(raw, message_publish_time=time_ms)
    raw.subscribe(topic)
    raw.flow(10)
    assert entry_ids(raw, 1) == [first]


def test_a_reader_goes_on_behind_its_seek(raw: RawClient, topic: str) -> None:
    ids = fill(raw, topic, 4)
    reader(raw, topic, ids[0])
    seek(raw, message_id=ids[2])
    raw.receive(_T.CLOSE_CONSUMER)
    reader(raw, topic, ids[0])
    raw.flow(10)
    assert entry_ids(raw, 2) == [2, 3]


@pytest.mark.parametrize("kind", [pb.CommandAck.Cumulative, pb.CommandAck.Individual])
def test_an_acknowledgement_that_a_seek_overtakes_does_not_undo_it(
    raw: RawClient, topic: str, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """The seek happens while the broker reads the size of the partly acknowledged batch."""
    read = Topic.message_count

    async def overtaken(found: Topic, position: Position) -> int:
        count = await read(found, position)
        await found.subscriptions["raw"].seek(EARLIEST)
        return count

    monkeypatch.setattr(Topic, "known_message_count", lambda *_: None)
    monkeypatch.setattr(Topic, "message_count", overtaken)
    batches = fill_batches(raw, topic, 3, 2)
    raw.subscribe(topic)
    batches[2].ack_set.append(0b10)
    answer = ack(raw, batches[2], kind=kind)
    assert "is gone; acknowledge again" in answer.message
    raw.subscribe(topic, 2)
    raw.flow(10, consumer_id=2)
    messages = list(raw.messages(3))
    assert [message.message_id.entryId for message in messages] == [0, 1, 2]
    assert not any(message.ack_set for message in messages)
