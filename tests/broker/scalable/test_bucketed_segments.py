"""Entry buckets in a topic's record, and how segments with them are shared by consumers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.errors import CorruptStorage
from pybroker.base.names import any_topic
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.scalable.assignment import assigned, shared_by_several
from pybroker.broker.scalable.buckets import (
    HASHES,
    BucketLimits,
    are_sound,
    bucket_ranges,
    equal_buckets,
)
from pybroker.broker.scalable.layout import Segment, scalable_layout
from pybroker.broker.scalable.record import (
    BadSegments,
    TopicRecord,
    decode,
    merged,
    migrated,
    new_record,
    rebucketed,
    sealed_by,
    split,
)

ORDERS = any_topic("topic://public/default/orders")


def buckets(record: TopicRecord) -> list[int]:
    return [each.buckets for each in record.active]


def segments_of(record: TopicRecord) -> tuple[Segment, ...]:
    return scalable_layout(ORDERS, record, 1).segments


@given(count=st.integers(1, 1024))
def test_buckets_follow_each_other_over_all_hashes_and_are_equally_wide(count: int) -> None:
    splits = equal_buckets(count)
    ranges = bucket_ranges(splits)
    assert len(ranges) == count and are_sound(splits)
    assert ranges[0][0] == 0 and ranges[-1][1] == HASHES - 1
    assert all(end + 1 == start for (_, end), (start, _) in pairwise(ranges))
    widths = [end - start for start, end in ranges]
    assert max(widths) - min(widths) <= 1


def test_a_new_topic_has_a_budget_of_buckets_over_all_its_segments() -> None:
    assert [buckets(new_record(count, 1)) for count in (1, 2, 3, 5)] == [
        [4],
        [2, 2],
        [1, 1, 1],
        [1, 1, 1, 1, 1],
    ]
    assert buckets(new_record(1, 1, limits=BucketLimits(64, 8))) == [8]
    assert buckets(new_record(1, 1, limits=BucketLimits(0))) == [1]


def test_halves_share_the_buckets_and_what_is_merged_has_those_of_both() -> None:
    record = split(new_record(1, 1), 0, 2)
    assert buckets(record) == [2, 2]
    record = split(split(record, 1, 3), 3, 4)
    assert buckets(record) == [1, 1, 1, 2]
    assert decode(record.encode(), ORDERS) == record
    one, other = (each.id for each in record.active[-2:])
    assert buckets(merged(record, one, other, 6)) == [1, 1, 3]
    assert buckets(merged(record, one, other, 6, BucketLimits(most=2))) == [1, 1, 2]


def test_a_rebucket_gives_a_segment_a_successor_of_the_same_range() -> None:
    record = rebucketed(new_record(2, 1), 1, 3, 5)
    assert buckets(record) == [2, 3]
    successor = record.segments[2]
    assert (successor.start, successor.end, successor.parents) == (0x8000, 0xFFFF, (1,))
    assert successor.splits == (21845, 43690)
    assert record.epoch == 1 and record.segments[1].children == (2,)
    assert sealed_by(record, record.segments[1]) == "rebucket"
    with pytest.raises(Conflict, match="sealed: its messages go to 2"):
        rebucketed(record, 1, 4, 6)
    for count in (0, 1025):
        with pytest.raises(BadSegments, match=f"1 to 1024 entry buckets, not {count}"):
            rebucketed(record, 2, count, 6)
    with pytest.raises(BadSegments, match="has 3 entry buckets already"):
        rebucketed(record, 2, 3, 6)


def test_parts_of_an_ordinary_topic_have_one_bucket_because_producers_stamped_nothing() -> None:
    record = migrated(ORDERS, 2, 1)
    assert [each.buckets for each in record.sealed] == [1, 1] and buckets(record) == [2, 2]


def test_a_record_of_earlier_releases_has_one_bucket_for_each_segment() -> None:
    stored = new_record(1, 1).encode().replace(b'"entryBucketSplits"', b'"unknown"')
    assert buckets(decode(stored, ORDERS)) == [1]


@pytest.mark.parametrize("splits", [b"[0, 32768, 49152]", b"[9, 9]", b"[70000]", b"[5, 4]"])
def test_buckets_that_do_not_follow_each_other_are_not_read(splits: bytes) -> None:
    stored = new_record(1, 1).encode().replace(b"[16384, 32768, 49152]", splits)
    with pytest.raises(CorruptStorage, match="segment 0 has buckets that begin at"):
        decode(stored, ORDERS)


# -- sharing


def ids(shares: dict[str, tuple[Segment, ...]]) -> dict[str, list[int]]:
    return {name: [each.id for each in share] for name, share in shares.items()}


def test_consumers_that_outnumber_the_segments_share_them_in_turn_up_to_their_buckets() -> None:
    segments = segments_of(rebucketed(new_record(2, 1), 1, 3, 2))
    live = [each for each in segments if not each.sealed]  # of 2 and 3 buckets
    shares = assigned(live, "abcdefg", sharing=True)
    assert ids(shares) == {"a": [0], "b": [2], "c": [0], "d": [2], "e": [2], "f": [], "g": []}
    assert shared_by_several(shares) == {0, 2}
    alone = assigned(live, "ab", sharing=True)
    assert ids(alone) == {"a": [0], "b": [2]} and not shared_by_several(alone)
    assert ids(assigned(live, "abc"))["c"] == [], "groups of checkpoint consumers do not share"


def test_drained_segments_are_nobody_s_share() -> None:
    segments = segments_of(rebucketed(new_record(1, 1), 0, 8, 2))
    shares = assigned(segments, "abc", drained={0}, sharing=True)
    assert ids(shares) == {"a": [0, 1], "b": [1], "c": [1]}
    assert shared_by_several(shares) == {1}


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    names=st.sets(st.text(max_size=2), min_size=1, max_size=30),
)
def test_no_bucket_is_without_a_consumer_and_no_consumer_idle_while_buckets_are_left(
    counts: list[int], names: set[str]
) -> None:
    record = new_record(len(counts), 1)
    for number, count in enumerate(counts):
        if count != record.segments[number].buckets:
            record = rebucketed(record, number, count, 2)
    live = [each for each in segments_of(record) if not each.sealed]
    shares = assigned(live, names, sharing=True)
    having = {each.id: 0 for each in live}
    for share in shares.values():
        for each in share:
            having[each.id] += 1
    assert all(1 <= having[each.id] <= len(each.bucket_splits) + 1 for each in live)
    working = sum(bool(share) for share in shares.values())
    assert working == min(len(names), sum(counts))
