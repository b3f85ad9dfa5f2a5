"""The owner of each slot when consumers name their ranges."""

import pytest
from dispatch_fakes import RecordingSink

from pybroker.base.errors import ConsumerAssignError
from pybroker.broker.dispatch.hash_ring import RING_SIZE, StickyRanges
from pybroker.broker.subscriptions.consumer import (
    Consumer,
    KeySharedMode,
    KeySharedPolicy,
    SubscribeRequest,
)


def sticky(name: str, *ranges: tuple[int, int]) -> Consumer:
    policy = KeySharedPolicy(KeySharedMode.STICKY, ranges)
    return Consumer(SubscribeRequest(1, name, key_shared=policy), RecordingSink())


def owners(found: StickyRanges, *slots: int) -> list[str | None]:
    return [owner.name if (owner := found.owner(slot)) else None for slot in slots]


def test_a_range_has_both_its_ends_and_may_be_one_slot() -> None:
    found = StickyRanges()
    found.add(sticky("late", (60, 80), (RING_SIZE - 1, RING_SIZE - 1)))
    found.add(sticky("early", (10, 20), (30, 30)))
    slots = (0, 9, 10, 20, 21, 29, 30, 31, 60, 80, 81, RING_SIZE - 1)
    early, late = "early", "late"
    expected = [None, None, early, early, None, None, early, None, late, late, None, late]
    assert owners(found, *slots) == expected
    told = [(start, end, owner.name) for start, end, owner in found.ranges()]
    assert told == [
        (10, 20, "early"),
        (30, 30, "early"),
        (60, 80, "late"),
        (RING_SIZE - 1, RING_SIZE - 1, "late"),
    ]


def test_a_leaving_consumer_frees_only_its_own_ranges() -> None:
    found = StickyRanges()
    first, second = sticky("first", (10, 20), (40, 50)), sticky("second", (25, 30))
    found.add(first)
    found.add(second)
    found.remove(first)
    assert owners(found, 10, 25, 45) == [None, "second", None]
    found.add(first)
    assert owners(found, 10, 25, 45) == ["first", "second", "first"]


@pytest.mark.parametrize("range_", [(20, 30), (5, 10), (12, 15), (0, RING_SIZE - 1)])
def test_ranges_that_overlap_another_consumers_are_refused_and_change_nothing(
    range_: tuple[int, int],
) -> None:
    found = StickyRanges()
    found.add(sticky("first", (10, 20)))
    with pytest.raises(ConsumerAssignError, match="overlaps"):
        found.add(sticky("second", range_))
    assert owners(found, 9, 10, 20, 21) == [None, "first", "first", None]


@pytest.mark.parametrize("range_", [(-1, 5), (7, 6), (0, RING_SIZE)])
def test_ranges_outside_of_the_ring_are_refused(range_: tuple[int, int]) -> None:
    with pytest.raises(ConsumerAssignError, match="is not within"):
        StickyRanges().add(sticky("c", range_))
