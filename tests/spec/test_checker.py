"""The checker of the models, on models of a few states."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

from spec.checker import ENDS, Broken, Model, Rules, StandsFor, explore, names_of, without

LIMIT = "the counter is too high"


class Counter(Model[int]):
    """It goes up by one or two. A fault may set it to -1, where it may stay."""

    STANDS_FOR: ClassVar[StandsFor] = {"one": (), "two": (), "fault": (), "recover": ()}
    FAULTS = frozenset({"fault"})
    HAS_ENDS = True

    def __init__(self, limit: int = 9, recovers: bool = True) -> None:
        self.limit = limit
        self.recovers = recovers

    def start(self) -> int:
        return 0

    def one(self, n: int) -> Iterator[tuple[str, int | Broken]]:
        if 0 <= n < 5:
            yield "one more", n + 1

    def two(self, n: int) -> Iterator[tuple[str, int | Broken]]:
        if 0 <= n < 4:
            yield "two more", n + 2

    def fault(self, n: int) -> Iterator[tuple[str, int | Broken]]:
        if n == 3:
            yield "fault", -1

    def recover(self, n: int) -> Iterator[tuple[str, int | Broken]]:
        if n == -1 and self.recovers:
            yield "recovered", 0

    def wrong(self, n: int) -> Broken | None:
        return Broken(LIMIT, str(n)) if n >= self.limit else None

    def is_over(self, n: int) -> bool:
        return n == 5


class Stepping(Counter):
    """A step itself breaks the promise."""

    def two(self, n: int) -> Iterator[tuple[str, int | Broken]]:
        if n == 2:
            yield "two more", Broken(LIMIT)


class Judging(Counter):
    def judge(self) -> tuple[Broken, int | None] | None:
        return Broken(LIMIT, "in the end"), 5


class Parity(Counter):
    """States that differ by an even number count as the same."""

    def normal(self, n: int) -> int:
        return n % 2


def test_all_states_and_all_possible_actions_are_found() -> None:
    found = explore(Counter())
    assert (found.states, found.broken) == (7, None)
    assert found.taken == {"one", "two", "fault", "recover"}


def test_the_shortest_way_to_a_wrong_state_is_found() -> None:
    found = explore(Counter(limit=5))
    assert found.broken == Broken(LIMIT, "5")
    assert len(found.steps) == 3
    assert sorted(found.steps) == ["one more", "two more", "two more"]


def test_a_step_may_break_a_promise() -> None:
    found = explore(Stepping())
    assert found.broken == Broken(LIMIT)
    assert found.steps == ("one more", "one more", "two more")


def test_a_state_from_which_no_end_can_be_reached_is_found_with_the_way_to_it() -> None:
    found = explore(Counter(recovers=False))
    assert found.broken == Broken(ENDS)
    assert len(found.steps) == 3
    assert found.steps[-1] == "fault"


def test_an_end_that_only_a_fault_reaches_is_none() -> None:
    class Ending(Counter):
        def is_over(self, n: int) -> bool:
            return n == -1

    assert explore(Ending()).broken == Broken(ENDS)


def test_what_was_explored_is_judged() -> None:
    found = explore(Judging())
    assert found.broken == Broken(LIMIT, "in the end")
    assert len(found.steps) == 3


def test_states_that_differ_in_nothing_that_matters_are_one() -> None:
    class Endless(Parity):
        HAS_ENDS = False

    assert explore(Endless()).states == 2


def test_a_rule_is_switched_off_for_one_model_only() -> None:
    class Some(Rules):
        first: bool = True
        second: bool = True

    fewer = without(Some, "first")
    assert names_of(Some) == ["first", "second"]
    assert (fewer.first, fewer.second) == (False, True)  # type: ignore[attr-defined]
    assert Some().first
    with pytest.raises(AssertionError):
        without(Some, "third")
