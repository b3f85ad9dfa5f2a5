"""Rates are differences of readings that are at least a second apart."""

from pybroker.admin.rates import Rates


class HandClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic_s(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000)


def test_the_first_reading_has_no_rate() -> None:
    assert Rates(HandClock()).of("a", 50) == 0.0


def test_a_rate_is_the_difference_over_the_time() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of("a", 50)
    clock.seconds += 2
    assert rates.of("a", 150) == 50.0


def test_a_quick_second_reading_keeps_the_rate() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of("a", 0)
    clock.seconds += 1
    rates.of("a", 10)
    clock.seconds += 0.5
    assert rates.of("a", 1000) == 10.0


def test_a_counter_that_went_back_begins_anew() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of("a", 100)
    clock.seconds += 1
    assert rates.of("a", 10) == 0.0
    clock.seconds += 1
    assert rates.of("a", 30) == 20.0


def test_counters_do_not_mix() -> None:
    clock = HandClock()
    rates = Rates(clock)
    rates.of("a", 0)
    rates.of("b", 0)
    clock.seconds += 1
    assert (rates.of("a", 1), rates.of("b", 2)) == (1.0, 2.0)
