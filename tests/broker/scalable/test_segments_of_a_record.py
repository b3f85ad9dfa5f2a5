"""The record of a scalable topic: what a split, a merge and a pruning make of it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.errors import CorruptStorage
from pybroker.base.names import TopicName, any_topic
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.scalable.record import (
    HASHES,
    MAX_SEGMENTS,
    BadSegments,
    NoSuchSegment,
    TopicRecord,
    decode,
    gaps,
    merged,
    migrated,
    new_record,
    of_segment,
    pruned,
    split,
    with_subscription,
)

ORDERS = any_topic("topic://public/default/orders")


def ranges(record: TopicRecord) -> list[tuple[int, int, int]]:
    return [(each.id, each.start, each.end) for each in record.active]


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=30))
def test_the_active_segments_always_divide_all_hashes(steps: list[tuple[bool, int]]) -> None:
    record = new_record(3, 1)
    for splits, place in steps:
        active = record.active
        before, at = record, place % len(active)
        if splits:
            record = split(record, active[at].id, 2)
        elif at + 1 < len(active):
            record = merged(record, active[at + 1].id, active[at].id, 2)
        assert record is before or record.epoch == before.epoch + 1
        assert not list(gaps(record))
    for each in record.segments.values():
        assert all(each.id in record.segments[parent].children for parent in each.parents)
        assert each.sealed is bool(each.children)
    assert decode(record.encode(), ORDERS) == record


def test_the_first_segments_have_equal_ranges_and_the_last_takes_the_rest() -> None:
    assert ranges(new_record(3, 1)) == [(0, 0, 21844), (1, 21845, 43689), (2, 43690, HASHES - 1)]
    for count in (0, -1, MAX_SEGMENTS + 1):
        with pytest.raises(BadSegments, match=f"not {count}"):
            new_record(count, 1)


def test_a_split_makes_two_halves_and_a_merge_one_of_neighbours() -> None:
    record = split(new_record(1, 1), 0, 5)
    assert ranges(record) == [(1, 0, 32767), (2, 32768, 65535)]
    assert (record.segments[0].children, record.segments[0].sealed_ms) == ((1, 2), 5)
    record = split(record, 1, 6)
    assert ranges(record) == [(3, 0, 16383), (4, 16384, 32767), (2, 32768, 65535)]
    record = merged(record, 2, 4, 7)
    assert ranges(record) == [(3, 0, 16383), (5, 16384, 65535)]
    assert record.segments[5].parents == (4, 2)
    assert record.descendants(record.segments[0]) == {1, 2, 3, 4, 5}


def test_what_cannot_be_split_or_merged_is_refused_with_the_reason() -> None:
    record = split(new_record(3, 1), 1, 2)
    with pytest.raises(NoSuchSegment, match="no segment 9: the topic has 0, 3, 4, 2"):
        split(record, 9, 3)
    with pytest.raises(Conflict, match="sealed: its messages go to 3, 4"):
        split(record, 1, 3)
    with pytest.raises(BadSegments, match="no neighbours"):
        merged(record, 0, 4, 3)
    with pytest.raises(BadSegments, match="no neighbours"):
        merged(record, 0, 0, 3)
    narrow = new_record(1, 1)
    for _ in range(16):
        narrow = split(narrow, narrow.active[0].id, 2)
    with pytest.raises(BadSegments, match="one hash, 0"):
        split(narrow, narrow.active[0].id, 2)


def test_a_pruned_segment_leaves_no_trace_in_its_relatives() -> None:
    record = pruned(split(split(new_record(1, 1), 0, 2), 1, 3), {0})
    assert sorted(record.segments) == [1, 2, 3, 4]
    assert record.segments[1].parents == () and record.segments[3].parents == (1,)


@pytest.mark.parametrize("parent", [0, 1, 7, -1])
def test_a_segment_does_not_come_from_itself_or_from_one_that_is_not_there(parent: int) -> None:
    said = json.loads(new_record(2, 1).encode())
    said["segments"]["0"]["parentIds"] = [parent]
    with pytest.raises(CorruptStorage, match=f"segment 0 cannot come from {parent}"):
        decode(json.dumps(said).encode(), ORDERS)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"segments": 1}', b"\xff"])
def test_an_unreadable_record_is_named(value: bytes) -> None:
    with pytest.raises(CorruptStorage, match="topic://public/default/orders"):
        decode(value, ORDERS)


def test_a_record_without_all_hashes_is_unreadable() -> None:
    said = json.loads(new_record(2, 1).encode())
    del said["segments"]["1"]
    with pytest.raises(CorruptStorage, match="no segment has"):
        decode(json.dumps(said).encode(), ORDERS)


def test_a_subscription_changes_no_layout() -> None:
    record = with_subscription(new_record(1, 1), "s", "QUEUE")
    assert record.subscriptions == {"s": "QUEUE"} and record.epoch == 0
    assert with_subscription(record, "s", None).subscriptions == {}


def test_a_segment_s_name_has_its_range_and_its_number() -> None:
    record = split(new_record(1, 1), 0, 2)
    name = of_segment(ORDERS, record.segments[1])
    assert str(name) == "segment://public/default/orders/0000-7fff-1"
    assert TopicName.parse(str(name)) == TopicName.of_ledger(name.ledger_name) == name
    assert name.partitioned_name == ORDERS and name.segment_id == 1 and name.persistent


def test_a_record_is_stored_as_json_of_the_whole() -> None:
    """Though only what has changed is written anew: that of a large topic takes long."""
    name = any_topic("topic://public/default/orders")
    record = replace(migrated(name, 3, 7, {"a": '"segments": {}'}), subscriptions={"s": "QUEUE"})
    for each in (record, split(record, 3, 8), new_record(1, 0)):
        ours = {"subscriptions": dict(each.subscriptions), "partitions": each.partitions}
        assert each.encode() == json.dumps(each.json() | ours).encode()
        assert decode(each.encode(), name) == each
