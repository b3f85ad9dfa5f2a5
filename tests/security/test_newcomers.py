"""Which connection that has not logged in makes room, against a full search."""

import random
from collections import Counter

import pytest

from pybroker.security.newcomers import Newcomers


def test_the_machine_with_most_loses_its_oldest() -> None:
    newcomers = Newcomers[str]()
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.2")):
        newcomers.came(name, address)
    assert newcomers.oldest_where_most_are() == "b"
    assert newcomers.oldest_of("10.0.0.1") == "a"
    assert newcomers.oldest_of("10.0.0.9") is None


def test_a_machine_has_its_ipv6_addresses_together() -> None:
    newcomers = Newcomers[int]()
    newcomers.came(0, "fd00:2::1")
    for number in range(1, 10):
        newcomers.came(number, f"fd00:1::{number:x}")
    assert newcomers.of_machine("fd00:1::ffff") == 9
    assert newcomers.oldest_where_most_are() == 1


def test_nobody_is_there() -> None:
    newcomers = Newcomers[str]()
    newcomers.went("never came")
    assert newcomers.oldest_where_most_are() is None
    newcomers.came("a", "10.0.0.1")
    newcomers.went("a")
    newcomers.went("a")
    assert newcomers.oldest_where_most_are() is None
    assert len(newcomers) == 0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_as_a_search_would_say(seed: int) -> None:
    randomly = random.Random(seed)
    newcomers, there = Newcomers[int](), dict[int, str]()
    for number in range(500):
        if there and randomly.random() < 0.45:
            gone = randomly.choice(list(there))
            del there[gone]
            newcomers.went(gone)
        else:
            there[number] = f"10.0.0.{randomly.randrange(8)}"
            newcomers.came(number, there[number])
        counts = Counter(there.values())
        oldest = newcomers.oldest_where_most_are()
        if not there:
            assert oldest is None
            continue
        assert oldest is not None
        assert counts[there[oldest]] == max(counts.values())
        assert oldest == next(each for each in there if there[each] == there[oldest])
