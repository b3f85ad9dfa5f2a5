"""Which connection that has not logged in makes room, against a full search."""

import random
from collections import Counter

import pytest

from pybroker.security.pending_connections import PendingConnections


def test_the_machine_with_most_loses_its_oldest() -> None:
    pending = PendingConnections[str]()
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.2")):
        pending.add(name, address)
    assert pending.oldest_where_most_are() == "b"
    assert pending.oldest_of("10.0.0.1") == "a"
    assert pending.oldest_of("10.0.0.9") is None


def test_a_machine_has_its_ipv6_addresses_together() -> None:
    pending = PendingConnections[int]()
    pending.add(0, "fd00:2::1")
    for number in range(1, 10):
        pending.add(number, f"fd00:1::{number:x}")
    assert pending.oldest_where_most_are() == 1


def test_none_is_pending() -> None:
    pending = PendingConnections[str]()
    pending.remove("never came")
    assert pending.oldest_where_most_are() is None
    pending.add("a", "10.0.0.1")
    pending.remove("a")
    pending.remove("a")
    assert pending.oldest_where_most_are() is None
    assert len(pending) == 0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_as_a_search_would_say(seed: int) -> None:
    randomly = random.Random(seed)
    pending, there = PendingConnections[int](), dict[int, str]()
    for number in range(500):
        if there and randomly.random() < 0.45:
            gone = randomly.choice(list(there))
            del there[gone]
            pending.remove(gone)
        else:
            there[number] = f"10.0.0.{randomly.randrange(8)}"
            pending.add(number, there[number])
        counts = Counter(there.values())
        oldest = pending.oldest_where_most_are()
        if not there:
            assert oldest is None
            continue
        assert oldest is not None
        assert counts[there[oldest]] == max(counts.values())
        assert oldest == next(each for each in there if there[each] == there[oldest])
