"""Stream consumers that share a segment by its entry buckets, on the wire."""

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient
from v5_raw import (
    join,
    leave,
    next_assignment,
    next_layout,
    segments_of,
    share_by_buckets,
    watch_layout,
)

from pybroker.base.names import any_topic
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
QUARTERS = [(0, 16383), (16384, 32767), (32768, 49151), (49152, 65535)]


class Bucketed:
    """A topic of one segment with four buckets."""

    def __init__(self, broker: Any, topic: str) -> None:
        self._broker = broker
        self.name = topic.replace("persistent", "topic", 1)
        self._key = any_topic(self.name)
        broker.call(lambda running: running.topics.scalable.create(self._key))

    def segment(self, number: int = 0) -> str:
        return self.name.replace("topic", "segment", 1) + f"/0000-ffff-{number}"

    def rebucket(self, number: int, buckets: int) -> None:
        self._broker.call(
            lambda running: running.topics.scalable.rebucket(self._key, number, buckets)
        )


@pytest.fixture
def bucketed(wire_broker: Any, topic: str) -> Bucketed:
    return Bucketed(wire_broker, topic)


def buckets_of(update: Any) -> list[list[tuple[int, int]]]:
    """Of each assigned segment: empty if nobody else has it."""
    segments = update.assignment.segments
    return [[(each.start, each.end) for each in of.bucket_ranges] for of in segments]


def test_a_layout_says_where_buckets_begin(raw: RawClient, bucketed: Bucketed) -> None:
    (segment,) = watch_layout(raw, bucketed.name).dag.segments
    assert list(segment.entry_bucket_splits) == [16384, 32768, 49152]
    bucketed.rebucket(0, 2)
    sealed, successor = next_layout(raw).dag.segments
    assert (sealed.state, list(sealed.entry_bucket_splits)) == (pb.SEALED, [16384, 32768, 49152])
    assert (successor.state, list(successor.entry_bucket_splits)) == (pb.ACTIVE, [32768])
    assert list(successor.parent_ids) == [0]


def test_consumers_of_one_segment_are_all_told_all_its_buckets(
    raw: RawClient, bucketed: Bucketed
) -> None:
    alone = join(raw, bucketed.name, "a", 1)
    assert segments_of(alone) == [0] and buckets_of(alone) == [[]]
    assert buckets_of(join(raw, bucketed.name, "b", 2)) == [QUARTERS]
    told = next_assignment(raw)
    assert told.consumer_id == 1 and buckets_of(told) == [QUARTERS]
    for number, name in ((3, "c"), (4, "d")):
        assert buckets_of(join(raw, bucketed.name, name, number)) == [QUARTERS]
    assert segments_of(join(raw, bucketed.name, "e", 5)) == [], "there are four buckets"
    for number in (5, 4, 3, 2):
        leave(raw, number)
    told = next_assignment(raw)
    assert told.consumer_id == 1 and buckets_of(told) == [[]], "nobody was told anything between"


def test_a_rebucket_makes_room_for_more_consumers_once_the_former_segment_is_drained(
    raw: RawClient, bucketed: Bucketed
) -> None:
    raw.subscribe(bucketed.segment(), 9, subscription="s")
    raw.close_consumer(9)
    bucketed.rebucket(0, 1)
    assert segments_of(join(raw, bucketed.name, "a", 1)) == [0, 1]
    assert segments_of(join(raw, bucketed.name, "b", 2)) == []
    bucketed.rebucket(1, 2)
    told = {update.consumer_id: update for update in (next_assignment(raw) for _ in range(2))}
    assert [segments_of(told[number]) for number in (1, 2)] == [[0, 2], [2, 1]]
    halves: list[tuple[int, int]] = [(0, 32767), (32768, 65535)]
    assert buckets_of(told[1]) == [[], halves] and buckets_of(told[2]) == [halves, []]


def test_entries_go_to_the_owner_of_their_bucket_and_a_moved_one_waits(
    raw: RawClient, connect: Connect, bucketed: Bucketed
) -> None:
    a, b, segment = connect(), connect(), bucketed.segment()
    assert isinstance(share_by_buckets(b, segment, QUARTERS, name="b"), pb.CommandSuccess)
    b.flow(10)
    raw.create_producer(segment)
    raw.publish(b"first", 0, entry_hash_min=1, entry_hash_max=1)
    (held,) = b.messages(1)
    assert isinstance(share_by_buckets(a, segment, QUARTERS, name="a"), pb.CommandSuccess)
    a.flow(10)
    raw.publish(b"moved", 1, entry_hash_min=2, entry_hash_max=2)
    raw.publish(b"stays", 2, entry_hash_min=50000, entry_hash_max=60000)
    b.messages(1)
    assert a.waiting_messages() == 0, "b holds another entry of that bucket"
    ack = pb.CommandAck(
        consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[held.message_id]
    )
    b.request(_T.ACK, "ack", ack)
    assert a.messages(1)[0].message_id.entryId == held.message_id.entryId + 1


@pytest.mark.parametrize(
    ("ranges", "mode", "sentence"),
    [
        ([], pb.STICKY, "without gaps"),
        ([(0, 100)], pb.STICKY, "without gaps"),
        (QUARTERS, pb.AUTO_SPLIT, "need STICKY"),
    ],
)
def test_a_consumer_that_does_not_name_all_buckets_hears_so(
    raw: RawClient, bucketed: Bucketed, ranges: Any, mode: Any, sentence: str
) -> None:
    refused = share_by_buckets(raw, bucketed.segment(), ranges, mode=mode)
    assert refused.error == pb.ConsumerAssignError and sentence in refused.message


def test_a_consumer_that_knows_an_old_layout_hears_so(
    raw: RawClient, connect: Connect, bucketed: Bucketed
) -> None:
    share_by_buckets(raw, bucketed.segment(), QUARTERS, name="a")
    halves = [(0, 32767), (32768, 65535)]
    refused = share_by_buckets(connect(), bucketed.segment(), halves, name="b")
    assert refused.error == pb.ConsumerAssignError and "old layout" in refused.message


def test_who_has_the_segment_alone_and_who_shares_it_do_not_meet(
    raw: RawClient, connect: Connect, bucketed: Bucketed
) -> None:
    raw.subscribe(bucketed.segment(), subscription="s")
    refused = share_by_buckets(connect(), bucketed.segment(), QUARTERS, name="b")
    assert refused.error == pb.ConsumerBusy
