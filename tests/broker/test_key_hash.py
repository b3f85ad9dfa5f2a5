"""Murmur3 and who owns which slot."""

import pytest
from dispatch_fakes import RecordingSink

from pybroker.broker.consumer import Consumer
from pybroker.broker.key_hash import (
    MAX_HASHED_BYTES,
    RING_SIZE,
    HashRing,
    murmur3_32,
    slot_of,
)


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
    consumers = [Consumer(1, f"consumer-{number}", RecordingSink()) for number in range(5)]
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


def test_consumers_of_one_name_share_the_ring() -> None:
    ring = HashRing()
    twins = [Consumer(number, "same", RecordingSink()) for number in range(2)]
    for twin in twins:
        ring.add(twin)
    owners = [ring.owner(slot) for slot in range(RING_SIZE)]
    assert all(owners.count(twin) > RING_SIZE // 4 for twin in twins)


def namesakes(*connections: int) -> list[Consumer]:
    return [Consumer(1, "", RecordingSink(), connection=number) for number in connections]


def owners(consumers: list[Consumer]) -> list[int]:
    """The connections that have the slots."""
    ring = HashRing()
    for consumer in consumers:
        ring.add(consumer)
    return [owner.connection for slot in range(RING_SIZE) if (owner := ring.owner(slot))]


def test_namesakes_share_alike_in_whatever_order_they_come() -> None:
    twins = namesakes(1, 2, 3)
    assert owners(twins) == owners(twins[::-1])


def test_a_namesake_that_leaves_moves_its_own_share_only() -> None:
    before, after = owners(namesakes(1, 2, 3)), owners(namesakes(1, 3))
    moved = {old for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {2}


def test_who_has_a_name_of_its_own_keeps_its_slots_on_another_connection() -> None:
    consumers = [Consumer(1, name, RecordingSink(), connection=n) for n, name in enumerate("ab")]
    back = Consumer(7, "a", RecordingSink(), connection=9)
    before = [number or 9 for number in owners(consumers)]
    assert owners([back, consumers[1]]) == before
