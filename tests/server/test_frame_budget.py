"""FrameBudget: which large frame is received, and which connections wait."""

from pybroker.server.connections.frame_budget import FrameBudget


def test_who_does_not_fit_waits_for_those_before() -> None:
    granted: list[str] = []
    first, second, third = (lambda n=n: granted.append(n) for n in ("first", "second", "third"))
    budget = FrameBudget(100)
    assert budget.take(80, first, "here")
    assert not budget.take(50, second, "here")
    assert not budget.take(10, third, "here")  # it would fit, but delay the second
    budget.give_back(80, first, "here")
    assert granted == ["second", "third"]
    assert budget.taken_bytes == 60


def test_a_frame_larger_than_the_budget_is_received_alone() -> None:
    granted: list[int] = []
    budget = FrameBudget(100)
    assert budget.take(1000, lambda: None, "here")
    assert not budget.take(1, lambda: granted.append(1), "here")
    budget.give_back(1000, lambda: None, "here")
    assert granted == [1]


def test_who_goes_while_waiting_gives_nothing_back() -> None:
    budget = FrameBudget(100)
    gone, other = (lambda: None), (lambda: None)
    budget.take(100, other, "here")
    budget.take(50, gone, "here")
    budget.give_back(50, gone, "here")
    assert budget.taken_bytes == 100


def test_who_receives_nothing_finds_room_where_another_machine_has_taken_all() -> None:
    granted: list[str] = []
    greedy, more, late, other = (
        lambda n=n: granted.append(n) for n in ("greedy", "more", "late", "other")
    )
    budget = FrameBudget(100)
    assert budget.take(100, greedy, "here")
    assert not budget.take(50, more, "here")
    assert budget.take(80, other, "there")
    assert not budget.take(10, late, "there")  # has found room already
    budget.give_back(80, other, "there")
    assert granted == ["late"]  # "more" came before, from a machine that has room
    assert budget.taken_bytes == 110
    assert not budget.take(100, other, "elsewhere")  # there is only as much again
    budget.give_back(100, greedy, "here")
    assert granted == ["late", "more", "other"]
    for size_bytes, who, machine in ((10, late, "there"), (50, more, "here")):
        budget.give_back(size_bytes, who, machine)
    budget.give_back(100, other, "elsewhere")
    assert (budget.taken_bytes, budget._of_machines) == (0, {})
