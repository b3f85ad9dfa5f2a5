"""FrameBudget: which large frame is received, and which connections wait."""

from pybroker.server.connections.frame_budget import FrameBudget


def test_who_does_not_fit_waits_for_those_before() -> None:
    granted: list[str] = []
    first, second, third = (lambda n=n: granted.append(n) for n in ("first", "second", "third"))
    budget = FrameBudget(100)
    assert budget.take(80, first)
    assert not budget.take(50, second)
    assert not budget.take(10, third)  # it would fit, but delay the second
    budget.give_back(80, first)
    assert granted == ["second", "third"]
    assert budget.taken_bytes == 60


def test_a_frame_larger_than_the_budget_is_received_alone() -> None:
    granted: list[int] = []
    budget = FrameBudget(100)
    assert budget.take(1000, lambda: None)
    assert not budget.take(1, lambda: granted.append(1))
    budget.give_back(1000, lambda: None)
    assert granted == [1]


def test_who_goes_while_waiting_gives_nothing_back() -> None:
    budget = FrameBudget(100)
    gone, other = (lambda: None), (lambda: None)
    budget.take(100, other)
    budget.take(50, gone)
    budget.give_back(50, gone)
    assert budget.taken_bytes == 100
