"""Murmur3 and the owner of each slot."""

from collections import Counter

import pytest
from dispatch_fakes import RecordingSink
from hypothesis import given
from hypothesis import strategies as st

from pybroker.broker.dispatch import hash_ring
from pybroker.broker.dispatch.hash_ring import (
    MAX_HASHED_BYTES,
    RING_SIZE,
    HashRing,
    murmur3_32,
    points_of,
    slot_of,
)
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"\0\0\0\0", 0x2362F9DE),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_agrees_with_its_published_vectors(data: bytes, expected: int) -> None:
    assert murmur3_32(data) == expected


def test_a_very_long_key_is_hashed_by_its_beginning() -> None:
    assert slot_of(b"k" * 5_000_000) == murmur3_32(b"k" * MAX_HASHED_BYTES) % RING_SIZE


def test_a_joining_consumer_takes_only_its_own_share() -> None:
    ring = HashRing()
    consumers = [
        Consumer(SubscribeRequest(1, f"consumer-{number}"), RecordingSink()) for number in range(5)
    ]
    for consumer in consumers[:4]:
        ring.add(consumer)
    before = [ring.owner(slot) for slot in range(RING_SIZE)]
    ring.add(consumers[4])
    after = [ring.owner(slot) for slot in range(RING_SIZE)]
    moved = [new for old, new in zip(before, after, strict=True) if new is not old]
    assert set(moved) == {consumers[4]}
    assert 0.1 < len(moved) / RING_SIZE < 0.3
    ring.remove(consumers[4])
    assert [ring.owner(slot) for slot in range(RING_SIZE)] == before


def test_a_consumer_that_comes_or_goes_costs_its_own_points_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed: list[str] = []

    def points_of(seed: str) -> tuple[int, ...]:
        placed.append(seed)
        return (slot_of(seed.encode()),)

    monkeypatch.setattr(hash_ring, "points_of", points_of)
    ring = HashRing()
    others = [
        Consumer(SubscribeRequest(number, f"c{number}"), RecordingSink()) for number in range(100)
    ]
    for consumer in [*others, *namesakes(1, 2, 3)]:
        ring.add(consumer)
    assert len(placed) == 103
    ring.remove(others[50])
    assert placed[103:] == ["c50/0"]


def test_of_many_namesakes_on_a_connection_the_one_that_leaves_costs_the_points_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring, twins = HashRing(), namesakes(*[1] * 100)
    for twin in twins:
        ring.add(twin)
    placed: list[str] = []
    monkeypatch.setattr(hash_ring, "points_of", lambda seed: placed.append(seed) or ())
    ring.remove(twins[0])
    assert placed == ["/1.99"]


def test_its_ranges_say_who_owns_each_slot_up_to_the_end_of_the_ring() -> None:
    ring = HashRing()
    for number in range(3):
        ring.add(Consumer(SubscribeRequest(1, f"c{number}"), RecordingSink()))
    told = [owner for first, last, owner in ring.ranges() for _ in range(first, last + 1)]
    assert told == [ring.owner(slot) for slot in range(RING_SIZE)]


def test_a_point_at_the_end_of_the_ring_leaves_no_range_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hash_ring, "points_of", lambda seed: (7, RING_SIZE - 1))
    ring, alone = HashRing(), Consumer(SubscribeRequest(1, "c"), RecordingSink())
    ring.add(alone)
    assert list(ring.ranges()) == [(0, 7, alone), (8, RING_SIZE - 1, alone)]


def test_nothing_is_kept_of_clients_that_have_left() -> None:
    ring, visitors = HashRing(), namesakes(1, 1, 2)
    for consumer in visitors:
        ring.add(consumer)
    for consumer in visitors:
        ring.remove(consumer)
    assert (ring.owner(0), list(ring.ranges())) == (None, [])
    assert not (ring._by_seed or ring._claims or ring._namesakes)


def naive_owners(consumers: list[Consumer]) -> dict[int, Consumer]:
    """Each point belongs to the least seed that has it."""
    by_seed: dict[str, Consumer] = {}
    seen: Counter[tuple[str, int]] = Counter()
    names: set[str] = set()
    for consumer in sorted(consumers, key=lambda one: one.rank):
        seed = f"{consumer.name}/0"
        if consumer.name in names:
            seen[consumer.name, consumer.request.connection] += 1
            number = seen[consumer.name, consumer.request.connection]
            seed = f"{consumer.name}/{consumer.request.connection}.{number}"
        names.add(consumer.name)
        by_seed[seed] = consumer
    found: dict[int, Consumer] = {}
    for seed, consumer in sorted(by_seed.items()):
        for point in points_of(seed):
            found.setdefault(point, consumer)
    return found


def test_a_consumer_has_a_hundred_points_all_over_the_ring() -> None:
    points = points_of("c/0")
    assert len(set(points)) >= 99
    assert min(points) < RING_SIZE // 10 < 9 * RING_SIZE // 10 < max(points) < RING_SIZE


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2)), max_size=30))
def test_the_ring_does_not_depend_on_earlier_consumers(
    visitors: list[tuple[str, int]],
) -> None:
    """A visitor that comes a second time leaves."""
    ring, present = HashRing(), dict[tuple[str, int], Consumer]()
    for number, visitor in enumerate(visitors):
        if (leaving := present.pop(visitor, None)) is not None:
            ring.remove(leaving)
            continue
        name, connection = visitor
        joining = Consumer(SubscribeRequest(number, name, connection=connection), RecordingSink())
        present[visitor] = joining
        ring.add(joining)
    owners = naive_owners(list(present.values()))
    found = {end: owner for _, end, owner in ring.ranges() if end in owners}
    assert found == owners


def test_consumers_of_one_name_share_the_ring() -> None:
    ring = HashRing()
    twins = [Consumer(SubscribeRequest(number, "same"), RecordingSink()) for number in range(2)]
    for twin in twins:
        ring.add(twin)
    owners = [ring.owner(slot) for slot in range(RING_SIZE)]
    assert all(owners.count(twin) > RING_SIZE // 4 for twin in twins)


def namesakes(*connections: int) -> list[Consumer]:
    return [
        Consumer(SubscribeRequest(1, "", connection=number), RecordingSink())
        for number in connections
    ]


def owners(consumers: list[Consumer]) -> list[int]:
    """The connection that owns each slot."""
    ring = HashRing()
    for consumer in consumers:
        ring.add(consumer)
    return [owner.request.connection for slot in range(RING_SIZE) if (owner := ring.owner(slot))]


def test_namesakes_share_alike_in_whatever_order_they_come() -> None:
    twins = namesakes(1, 2, 3)
    assert owners(twins) == owners(twins[::-1])


def test_a_namesake_that_leaves_moves_its_own_share_only() -> None:
    before, after = owners(namesakes(1, 2, 3)), owners(namesakes(1, 3))
    moved = {old for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {2}


def test_who_has_a_name_of_its_own_keeps_its_slots_on_another_connection() -> None:
    consumers = [
        Consumer(SubscribeRequest(1, name, connection=n), RecordingSink())
        for n, name in enumerate("ab")
    ]
    back = Consumer(SubscribeRequest(7, "a", connection=9), RecordingSink())
    before = [number or 9 for number in owners(consumers)]
    assert owners([back, consumers[1]]) == before
