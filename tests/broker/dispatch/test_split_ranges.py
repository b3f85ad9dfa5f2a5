"""Key_Shared's slots without a ring: split when a consumer joins, merged when one leaves."""

import random
from itertools import pairwise

import pytest
from dispatch_fakes import RecordingSink

from pybroker.base.errors import ConsumerAssignError
from pybroker.broker.dispatch.hash_ring import RING_SIZE, HashRing, StickyRanges
from pybroker.broker.dispatch.split_ranges import SplitRanges, split_by
from pybroker.broker.subscriptions.consumer import (
    Consumer,
    KeySharedMode,
    KeySharedPolicy,
    SubscribeRequest,
)


def consumers(count: int) -> list[Consumer]:
    return [
        Consumer(SubscribeRequest(number, f"c{number}"), RecordingSink()) for number in range(count)
    ]


def test_a_new_consumer_takes_the_lower_half_of_the_widest_range() -> None:
    split, (a, b, c) = SplitRanges(), consumers(3)
    assert split.owner(0) is None
    for each in (a, b, c):
        split.add(each)
    assert list(split.ranges()) == [(0, 16384, c), (16385, 32768, b), (32769, 65535, a)]


def test_who_goes_leaves_its_range_to_a_neighbour() -> None:
    split, (a, b, c) = SplitRanges(), consumers(3)
    for each in (a, b, c):
        split.add(each)
    split.remove(b)
    assert list(split.ranges()) == [(0, 16384, c), (16385, 65535, a)]
    split.remove(a)
    assert list(split.ranges()) == [(0, 65535, c)]
    split.remove(c)
    assert list(split.ranges()) == []


def test_what_the_last_one_leaves_goes_to_the_one_before() -> None:
    split, (a, b, c) = SplitRanges(), consumers(3)
    for each in (a, b, c):
        split.add(each)
    split.remove(a)
    assert list(split.ranges()) == [(0, 16384, c), (16385, 65535, b)]


def test_ranges_cover_all_slots_and_name_their_owners() -> None:
    rng, split, present = random.Random(3), SplitRanges(), list[Consumer]()
    waiting = consumers(60)
    for _ in range(300):
        if present and rng.random() < 0.45:
            split.remove(present.pop(rng.randrange(len(present))))
        elif waiting:
            present.append(waiting.pop())
            split.add(present[-1])
        ranges = list(split.ranges())
        assert {owner for _, _, owner in ranges} == set(present)
        if not ranges:
            continue
        assert ranges[0][0] == 0 and ranges[-1][1] == RING_SIZE - 1
        assert all(end + 1 == start for (_, end, _), (start, _, _) in pairwise(ranges))
        for start, end, owner in ranges:
            assert split.owner(start) is split.owner(end) is owner


def test_there_is_an_end_to_splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pybroker.broker.dispatch.split_ranges.RING_SIZE", 4)
    split = SplitRanges()
    for each in consumers(4):
        split.add(each)
    with pytest.raises(ConsumerAssignError):
        split.add(Consumer(SubscribeRequest(9, "late"), RecordingSink()))


def test_the_policy_and_the_configuration_choose() -> None:
    sticky = KeySharedPolicy(KeySharedMode.STICKY)
    assert isinstance(split_by(sticky, consistent=False), StickyRanges)
    assert isinstance(split_by(KeySharedPolicy(), consistent=True), HashRing)
    assert isinstance(split_by(KeySharedPolicy(), consistent=False), SplitRanges)
