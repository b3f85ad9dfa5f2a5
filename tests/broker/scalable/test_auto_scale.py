"""Which segments are split and merged by their load, and what must not happen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.policies.auto_scale import AUTO_SCALE, contradiction
from pybroker.broker.policies.kinds import BadPolicy, RefusedPolicy
from pybroker.broker.scalable.auto_scale import (
    Change,
    Load,
    Nothing,
    Situation,
    is_cold,
    next_change,
)
from pybroker.broker.scalable.record import (
    TopicRecord,
    gaps,
    merged,
    new_record,
    rebucketed,
    split,
)

POLICY = AUTO_SCALE.of_broker(BrokerConfig())
HOUR_MS = 3_600_000
COLD, BUSY, HOT = Load(1, 1, 1, 1), Load(messages_in=2000), Load(messages_in=30_000)


def situation(
    loads: Mapping[int, Load],
    record: TopicRecord | None = None,
    consumers: int = 0,
    cold_s: float = 1000,
    now_ms: int = HOUR_MS,
) -> Situation:
    cold = {number: cold_s for number, load in loads.items() if is_cold(load, POLICY)}
    return Situation(record or new_record(len(loads), 1), loads, cold, consumers, now_ms)


def decided(now: Situation, **policy: Any) -> tuple[int, ...]:
    found = next_change(now, POLICY | policy)
    return found.segments if isinstance(found, Change) else ()


def reason(now: Situation, **policy: Any) -> str:
    found = next_change(now, POLICY | policy)
    assert isinstance(found, Nothing)
    return found.why


# -- splits


@pytest.mark.parametrize(
    "hot",
    [
        Load(messages_in=10_001),
        Load(bytes_in=50_000_001),
        Load(messages_out=50_001),
        Load(bytes_out=250_000_001),
    ],
)
def test_any_rate_above_its_threshold_splits_the_segment(hot: Load) -> None:
    assert decided(situation({0: BUSY, 1: hot})) == (1,)
    assert decided(situation({0: HOT, 1: hot})) == (0,), "the one that is furthest above"


def test_consumers_without_a_segment_split_the_busiest_if_it_has_enough_to_do() -> None:
    assert decided(situation({0: COLD, 1: BUSY}, consumers=3)) == (1,)
    assert decided(situation({0: COLD, 1: BUSY}, consumers=2)) == ()
    slow = situation({0: COLD, 1: Load(messages_in=999)}, consumers=3)
    assert decided(slow) == ()
    assert decided(slow, splitVsRebucketMinMsgRateInThreshold=0) == (1,)


def test_consumers_that_outnumber_all_buckets_get_more_if_no_segment_has_enough_to_do() -> None:
    loads = {0: COLD, 1: COLD}  # with two buckets each
    assert decided(situation(loads, consumers=4)) == ()
    found = next_change(situation(loads, consumers=5), POLICY)
    assert isinstance(found, Change) and (found.segments, found.buckets) == ((0, 1), 4)
    assert "5 consumers share 2 segments, which need 4 buckets" in found.why
    record = rebucketed(new_record(2, 1), 0, 4, 1)
    uneven = situation({1: COLD, 2: COLD}, record, consumers=7)
    found = next_change(uneven, POLICY)
    assert isinstance(found, Change) and (found.segments, found.buckets) == ((1,), 4)
    assert decided(situation({0: COLD, 1: BUSY}, consumers=5)) == (1,), "a split is better"
    soon = replace(situation(loads, record, consumers=9), now_ms=59_000)
    assert "5 consumers" not in reason(soon) and "the last change was" in reason(soon)
    assert decided(replace(situation(loads, consumers=5), most_buckets=2)) == ()


def test_a_topic_has_at_most_so_many_segments_and_merges_to_make_room() -> None:
    full = {"maxSegments": 3}
    assert "but maxSegments is 3" in reason(situation({0: HOT, 1: BUSY, 2: BUSY}), **full)
    assert decided(situation({0: HOT, 1: COLD, 2: COLD}), **full) == (1, 2)


def test_one_hash_is_not_split() -> None:
    record = new_record(1, 1)
    for _ in range(16):
        record = split(record, record.active[0].id, 1)
    narrow = record.active[0].id
    assert decided(situation({narrow: HOT}, record)) == ()


def test_after_a_change_the_next_split_waits() -> None:
    record = split(new_record(1, 1), 0, HOUR_MS)
    hot = {1: HOT, 2: COLD}
    early = situation(hot, record, now_ms=HOUR_MS + 59_000)
    assert "the last change was 59 s ago" in reason(early)
    assert decided(situation(hot, record, now_ms=HOUR_MS + 60_000)) == (1,)


# -- merges


def test_the_two_coldest_neighbours_are_merged() -> None:
    loads = {0: COLD, 1: Load(messages_in=500), 2: COLD, 3: Load(messages_in=5)}
    assert decided(situation(loads)) == (2, 3)


@pytest.mark.parametrize(
    "now",
    [
        situation({0: COLD, 1: BUSY, 2: COLD}),
        situation({0: COLD, 1: COLD}, cold_s=299),
        situation({0: COLD, 1: COLD}, consumers=2),
        situation({0: COLD}),
        situation({}, new_record(2, 1)),
    ],
    ids=["no neighbours", "not for long", "used by consumers", "one segment", "not measured yet"],
)
def test_what_is_not_merged(now: Situation) -> None:
    assert decided(now) == ()


def test_a_topic_keeps_its_least_number_of_segments() -> None:
    now = situation({0: COLD, 1: COLD, 2: COLD})
    assert decided(now, minSegments=3) == ()
    assert len(decided(now, minSegments=2)) == 2


def test_two_that_would_be_split_again_are_not_merged() -> None:
    limits = {f"split{each}Threshold": 1.5 for each in ("MsgRateIn", "MsgRateOut")}
    assert decided(situation({0: COLD, 1: COLD}), **limits) == ()


def test_a_lineage_has_at_most_so_many_merges() -> None:
    record = new_record(2, 1)
    for _ in range(3):
        one, other = record.active
        record = merged(record, one.id, other.id, 1)
        record = split(record, record.active[0].id, 1)
    now = situation({each.id: COLD for each in record.active}, record)
    assert decided(now, maxDagDepth=3) == ()
    assert len(decided(now, maxDagDepth=4)) == 2


# -- both together


_LOADS = st.sampled_from([COLD, BUSY, HOT, Load(messages_in=900), Load(bytes_out=3e8)])


@given(data=st.data(), consumers=st.integers(0, 6))
def test_whatever_is_decided_can_be_done_and_keeps_the_limits(data: Any, consumers: int) -> None:
    record, policy = new_record(4, 1), POLICY | {"maxSegments": 6, "minSegments": 2}
    for hour in range(1, 8):
        loads = {each.id: data.draw(_LOADS) for each in record.active}
        now = situation(loads, record, consumers, now_ms=hour * HOUR_MS)
        found = next_change(now, policy)
        if isinstance(found, Nothing):
            continue
        if found.buckets is not None:
            for each in found.segments:
                record = rebucketed(record, each, found.buckets, hour * HOUR_MS)
        else:
            change = merged if len(found.segments) == 2 else split
            record = change(record, *found.segments, hour * HOUR_MS)
        assert 2 <= len(record.active) <= 6 and not list(gaps(record))
        early = replace(now, record=record, now_ms=hour * HOUR_MS + 1000)
        assert isinstance(next_change(early, policy), Nothing), "not twice at once"


# -- the policy


def test_thresholds_that_would_undo_each_other_are_refused() -> None:
    assert contradiction(POLICY) is None
    with pytest.raises(RefusedPolicy, match="minSegments is 5, and maxSegments 4"):
        AUTO_SCALE.check({"minSegments": 5, "maxSegments": 4})
    with pytest.raises(RefusedPolicy, match="mergeBytesRateInThreshold is 7"):
        AUTO_SCALE.check({"splitBytesRateInThreshold": 7, "mergeBytesRateInThreshold": 7})
    with pytest.raises(BadPolicy, match="at least 0"):
        AUTO_SCALE.check({"splitMsgRateInThreshold": -1})
    part = {"splitMsgRateInThreshold": 10.0}
    assert AUTO_SCALE.check(part | {"unknown": 1}) == part
    assert contradiction(POLICY | part) is not None, "with the broker's threshold of merges"
