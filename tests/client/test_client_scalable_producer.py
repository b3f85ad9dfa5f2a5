"""A producer of a scalable topic, while its segments are split."""

import asyncio
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, Sent, turns
from scripted_segments import NAME, Segments

from pybroker.broker.dispatch import hash_ring
from pybroker.client import (
    AlreadyClosed,
    InvalidConfiguration,
    MessageId,
    NotAllowed,
    Outgoing,
    Timeout,
    TopicNotFound,
    TransactionAborted,
    encode_batch,
)
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata, payload_of

LEFT, RIGHT = "key 1", "key 0"  # their hashes are in the lower and in the upper half


@pytest.fixture
def segments(broker: ScriptedBroker) -> Segments:
    return Segments(broker)


def stored(broker: ScriptedBroker, segments: Segments) -> list[tuple[int, bytes]]:
    """Segment and content of each accepted message that was not a batch."""
    found = [
        (segments.of_producer(each.producer_id), payload_of(each.entry)) for each in broker.sent
    ]
    return [(number, bytes(content)) for number, content in found]


def test_the_upper_half_of_a_keys_hash_chooses_the_segment(segments: Segments):
    segments.split(0)
    segments.split(1)
    layout = segments.layout
    for key in ("", LEFT, RIGHT, "ключ", *map(str, range(200))):
        wanted = hash_ring.murmur3_32(key.encode()) >> 16
        segment = layout.segment_of(key)
        assert segment.start <= wanted <= segment.end and not segment.is_sealed
    assert (layout.segment_of(LEFT).id, layout.segment_of(RIGHT).id) == (4, 2)
    assert layout.segment_of(LEFT).topic == "segment://public/default/orders/4000-7fff-4"


def test_messages_follow_their_keys_when_a_segment_is_split(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    async def work() -> None:
        producer = await client.create_producer(NAME, "p")
        await producer.send(b"1", partition_key=LEFT)
        segments.split(0)
        segments.tell()
        await turns()
        for content, key in ((b"2", LEFT), (b"3", RIGHT)):
            await producer.send(content, partition_key=key)
        assert producer.producer_name() == "p"

    broker.run(work())
    assert stored(broker, segments) == [(0, b"1"), (1, b"2"), (2, b"3")]
    names = [each.producer_name for each in broker.asked_for(pb.CommandProducer)]
    assert names == ["p-seg-0", "p-seg-1", "p-seg-2"]
    assert len(broker.asked_for(pb.CommandCloseProducer)) == 1


def test_messages_without_a_key_go_to_each_segment_in_turn(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    segments.split(0)

    async def work() -> None:
        producer = await client.create_producer(NAME)
        for _ in range(4):
            await producer.send(b"x")

    broker.run(work())
    assert sorted(number for number, _ in stored(broker, segments)) == [1, 1, 2, 2]


def test_a_message_that_a_sealed_segment_refuses_goes_to_its_child(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    """And stays before those that are sent later."""

    async def work() -> None:
        producer = await client.create_producer(NAME)
        segments.split(0)
        sending = [
            asyncio.ensure_future(producer.send(content, partition_key=key))
            for content, key in ((b"1", LEFT), (b"2", LEFT), (b"3", RIGHT))
        ]
        await turns()
        assert not any(each.done() for each in sending)  # the layout is not told yet
        last = asyncio.ensure_future(producer.send(b"4", partition_key=LEFT))
        segments.tell()
        await asyncio.gather(*sending, last)

    broker.run(work())
    accepted = [each for each in stored(broker, segments) if each[0] != 0]
    assert sorted(accepted) == [(1, b"1"), (1, b"2"), (1, b"4"), (2, b"3")]
    assert [content for number, content in accepted if number == 1] == [b"1", b"2", b"4"]


def test_a_child_waits_for_the_answers_of_its_parent(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    async def work() -> None:
        producer = await client.create_producer(NAME)
        segments.silent.add(0)
        first = asyncio.ensure_future(producer.send(b"1", partition_key=LEFT))
        await turns()
        segments.split(0)
        segments.tell()
        await turns()
        second = asyncio.ensure_future(producer.send(b"2", partition_key=LEFT))
        await turns()
        assert stored(broker, segments) == [(0, b"1")]
        segments.answer()
        await asyncio.gather(first, second)

    broker.run(work())
    assert stored(broker, segments) == [(0, b"1"), (1, b"2")]


def test_in_a_transaction_a_message_that_moves_is_one_operation(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    """The commit waits for it, and is not refused because the first segment had refused it."""

    async def work() -> None:
        producer = await client.create_producer(NAME, batching_enabled=True)
        txn = await client.new_transaction()
        segments.split(0)
        producer.send_async(b"1", partition_key=LEFT, txn=txn)
        committing = asyncio.ensure_future(txn.commit())
        await asyncio.sleep(1)
        assert not broker.asked_for(pb.CommandEndTxn)
        segments.tell()
        await committing

    broker.run(work())
    (end,) = broker.asked_for(pb.CommandEndTxn)
    assert end.txn_action == pb.COMMIT
    joined = [each.partitions[0] for each in broker.asked_for(pb.CommandAddPartitionToTxn)]
    assert [name.rpartition("/")[2] for name in joined] == ["0000-ffff-0", "0000-7fff-1"]
    assert [segments.of_producer(each.producer_id) for each in broker.sent] == [0, 1]


def test_a_transaction_is_aborted_if_a_message_of_it_fails(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    async def work() -> None:
        producer = await client.create_producer(NAME, send_timeout_millis=5_000)
        txn = await client.new_transaction()
        segments.split(0)  # nobody tells the layout
        producer.send_async(b"1", partition_key=LEFT, txn=txn)
        with pytest.raises(TransactionAborted) as aborted:
            await txn.commit()
        assert isinstance(aborted.value.__cause__, Timeout)

    broker.run(work())
    (end,) = broker.asked_for(pb.CommandEndTxn)
    assert end.txn_action == pb.ABORT


def test_a_layout_that_does_not_come_ends_in_a_timeout(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    async def work() -> None:
        producer = await client.create_producer(NAME, send_timeout_millis=5_000)
        segments.split(0)
        with pytest.raises(Timeout, match="0000-ffff-0 took no messages within 5000 ms"):
            await producer.send(b"1")

    broker.run(work())


def test_flush_returns_when_messages_that_moved_are_stored(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    async def work() -> None:
        producer = await client.create_producer(NAME, batching_enabled=True)
        segments.split(0)
        producer.send_async(b"1", partition_key=LEFT)
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(1)
        assert not flushing.done()
        segments.tell()
        await flushing

    broker.run(work())
    assert [segments.of_producer(each.producer_id) for each in broker.sent] == [0, 1]


def test_a_full_queue_is_full_for_all_segments_together(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    segments.split(0)
    segments.silent |= {1, 2}

    async def work() -> list[Any]:
        producer = await client.create_producer(NAME, max_pending_messages=2)
        refused: list[Any] = []
        for _ in range(3):
            producer.send_async(b"x", lambda error, _: refused.append(error))
        return refused

    (refused,) = broker.run(work())
    assert "2 messages to topic://public/default/orders" in str(refused)


def test_after_a_reconnection_the_layout_of_that_time_counts(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    """A message that had been sent is stored by the child, also if the segment has been pruned."""
    segments.silent.add(0)

    async def work() -> MessageId:
        producer = await client.create_producer(NAME)
        sending = asyncio.ensure_future(producer.send(b"1", partition_key=LEFT))
        await turns()
        segments.split(0)
        found = broker.answers["Producer"]
        broker.answers["Producer"] = lambda peer, body: (
            pb.CommandError(request_id=0, error=pb.TopicNotFound, message="pruned")
            if body.topic.endswith("-0")
            else found(peer, body)
        )
        broker.peer.drop()
        return await sending  # type: ignore[no-any-return]

    assert broker.run(work()).topic_name() == "segment://public/default/orders/0000-7fff-1"


def test_messages_fail_when_the_topic_is_deleted(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    def gone(_: Any, body: Any) -> Any:
        if isinstance(body, pb.CommandProducer):
            return pb.CommandError(request_id=0, error=pb.TopicNotFound, message="gone")
        return pb.CommandScalableTopicUpdate(
            session_id=body.session_id, error=pb.TopicNotFound, message="gone"
        )

    async def work() -> None:
        producer = await client.create_producer(NAME)
        broker.answers["Producer"] = broker.answers["ScalableTopicLookup"] = gone
        segments.silent.add(0)
        sending = asyncio.ensure_future(producer.send(b"1"))
        await turns()
        (asked,) = broker.asked_for(pb.CommandProducer)
        broker.peer.say(pb.CommandCloseProducer(producer_id=asked.producer_id, request_id=0))
        with pytest.raises(TopicNotFound):
            await sending
        with pytest.raises(TopicNotFound):
            await producer.send(b"2")
        await producer.close()
        with pytest.raises(AlreadyClosed):
            await client.close()
            await client.create_producer(NAME)

    broker.run(work())


def test_a_broker_without_scalable_topics_is_told_from_one_without_the_topic(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    broker.answers["Connect"] = lambda *_: pb.CommandConnected(server_version="scripted")

    async def work() -> None:
        with pytest.raises(NotAllowed, match="has no scalable topics"):
            await client.create_producer(NAME)

    broker.run(work())
    assert not broker.asked_for(pb.CommandScalableTopicLookup)


def test_an_encoded_batch_is_refused_with_advice(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    async def work() -> None:
        producer = await client.create_producer(NAME)
        with pytest.raises(InvalidConfiguration, match="send its messages one by one"):
            await producer.send_batch(encode_batch([Outgoing(b"x")]))

    broker.run(work())


def test_closing_sends_what_waits_and_leaves_nothing(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    async def work() -> None:
        producer = await client.create_producer(NAME, batching_enabled=True)
        producer.send_async(b"1")
        await producer.close()
        await turns()

    broker.run(work())
    (sent,) = broker.sent
    assert isinstance(sent, Sent) and parse_metadata(sent.entry).num_messages_in_batch == 1
    assert len(broker.asked_for(pb.CommandScalableTopicClose)) == 1
    assert len(broker.asked_for(pb.CommandCloseProducer)) == 1


def test_a_layout_right_behind_the_first_one_is_heard(
    broker: ScriptedBroker, client: Any, segments: Segments
):
    def looked_up(peer: Any, body: Any) -> Any:
        peer.say(segments.update(body.session_id))
        segments.split(0)
        return segments.update(body.session_id)

    broker.answers["ScalableTopicLookup"] = looked_up

    async def work() -> None:
        producer = await client.create_producer(NAME)
        await producer.send(b"1", partition_key=LEFT)

    broker.run(work())
    assert stored(broker, segments) == [(1, b"1")]
