"""Stream consumers of scalable topics, and what a scripted controller assigns to them."""

from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, turns
from scripted_segments import NAME, Segments

from pybroker.wire import pulsar_api_pb2 as pb

QUARTERS = ((0, 16383), (16384, 32767), (32768, 49151), (49152, 65535))
SEGMENT = "segment://public/default/orders/0000-ffff-0"


def assignment(*ranges: tuple[int, int]) -> pb.ScalableConsumerAssignment:
    """Of the one segment, shared by these buckets."""
    found = pb.ScalableConsumerAssignment(layout_epoch=0)
    added = found.segments.add(segment_id=0, hash_start=0, hash_end=65535, segment_topic=SEGMENT)
    for start, end in ranges:
        added.bucket_ranges.add(start=start, end=end)
    return found


@pytest.fixture
def segments(broker: ScriptedBroker) -> Segments:
    broker.answers["ScalableTopicSubscribe"] = lambda *_: pb.CommandScalableTopicSubscribeResponse(
        request_id=0, assignment=assignment()
    )
    broker.answers["ScalableTopicUnsubscribe"] = lambda *_: pb.CommandSuccess(request_id=0)
    return Segments(broker)


def assign(broker: ScriptedBroker, *ranges: tuple[int, int]) -> None:
    (asked,) = broker.asked_for(pb.CommandScalableTopicSubscribe)
    broker.peer.say(
        pb.CommandScalableTopicAssignmentUpdate(
            consumer_id=asked.consumer_id, assignment=assignment(*ranges)
        )
    )


def test_who_shares_a_segment_subscribes_by_all_its_buckets(
    broker: ScriptedBroker, client: Any, segments: Segments
) -> None:
    async def work() -> None:
        await client.create_stream_consumer(NAME, "s", consumer_name="one")
        for _ in range(2):
            assign(broker, *QUARTERS)
            await turns()

    broker.run(work())
    alone, shared = broker.asked_for(pb.CommandSubscribe)
    assert (alone.subType, alone.HasField("keySharedMeta")) == (
        pb.CommandSubscribe.Exclusive,
        False,
    )
    meta = shared.keySharedMeta
    assert (shared.subType, meta.keySharedMode) == (pb.CommandSubscribe.Key_Shared, pb.STICKY)
    assert meta.entry_bucket_dispatch
    assert [(each.start, each.end) for each in meta.hashRanges] == list(QUARTERS)
    (closed,) = broker.asked_for(pb.CommandCloseConsumer)
    assert closed.consumer_id == alone.consumer_id, "and the same assignment changes nothing"


def test_what_is_assigned_to_a_consumer_that_is_being_closed_is_not_opened(
    broker: ScriptedBroker, client: Any, segments: Segments
) -> None:
    def closing(peer: Peer, body: Any) -> pb.CommandSuccess:
        assign(broker, *QUARTERS)
        return pb.CommandSuccess(request_id=body.request_id)

    async def work() -> None:
        consumer = await client.create_stream_consumer(NAME, "s", consumer_name="one")
        broker.answers["CloseConsumer"] = closing
        await consumer.close()
        await turns()

    broker.run(work())
    assert len(broker.asked_for(pb.CommandSubscribe)) == 1, "nobody would close the other"


def test_an_assignment_right_behind_the_first_one_replaces_it(
    broker: ScriptedBroker, client: Any, segments: Segments
) -> None:
    def subscribed(peer: Peer, body: Any) -> None:
        peer.say(
            pb.CommandScalableTopicSubscribeResponse(
                request_id=body.request_id, assignment=assignment()
            )
        )
        assign(broker, *QUARTERS)

    broker.answers["ScalableTopicSubscribe"] = subscribed

    async def work() -> None:
        await client.create_stream_consumer(NAME, "s", consumer_name="one")
        await turns()

    broker.run(work())
    (asked,) = broker.asked_for(pb.CommandSubscribe)
    assert asked.subType == pb.CommandSubscribe.Key_Shared
