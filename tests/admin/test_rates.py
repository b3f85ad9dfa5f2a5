"""Rates are differences of readings at least a second apart."""

import sys
from types import SimpleNamespace
from typing import Any

from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.topic import producer_stats
from pybroker.broker.persistent.producers import Producer

A, B = ("a", "messages"), ("b", "messages")


class HandClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic_s(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


def test_the_first_reading_has_no_rate() -> None:
    assert Rates(HandClock()).of(A, 50) == 0.0


def test_a_rate_is_the_difference_over_the_time() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of(A, 50)
    clock.seconds += 2
    assert rates.of(A, 150) == 50.0


def test_an_equal_name_does_not_take_the_place_of_the_one_that_is_kept() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of(A, 0)
    again = (*A,)[:1] + (*A,)[1:]
    before = sys.getrefcount(again)
    clock.seconds += 1
    assert rates.of(again, 10) == 10.0
    assert sys.getrefcount(again) == before


def test_a_quick_second_reading_keeps_the_rate() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of(A, 0)
    clock.seconds += 1
    rates.of(A, 10)
    clock.seconds += 0.5
    assert rates.of(A, 1000) == 10.0


def test_a_counter_that_went_back_begins_anew() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of(A, 100)
    clock.seconds += 1
    assert rates.of(A, 10) == 0.0
    clock.seconds += 1
    assert rates.of(A, 30) == 20.0


def test_counters_do_not_mix() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of(A, 0)
    rates.of(B, 0)
    clock.seconds += 1
    assert (rates.of(A, 1), rates.of(B, 2)) == (1.0, 2.0)


def test_names_that_join_to_the_same_have_rates_of_their_own() -> None:
    """Producer "b c" of topic "a", producer "c" of topic "a b"."""
    clock = HandClock()
    rates = Rates(clock)
    producer_stats(_producer("b c", 0), _topic("a"), rates)
    clock.seconds += 2
    assert producer_stats(_producer("c", 100), _topic("a b"), rates)["msgRateIn"] == 0.0


def _producer(name: str, messages_in: int) -> Producer:
    owner: Any = None
    return Producer(1, name, owner, messages_in=messages_in)


def _topic(name: str) -> Any:
    return SimpleNamespace(name=name)
