"""Rates are differences of readings that are at least a second apart."""

from pybroker.admin.rates import Rates

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
