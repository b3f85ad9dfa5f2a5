"""Which crashes eos-check tries, and in which order."""

from hypothesis import given
from hypothesis import strategies as st

from pybroker.eos_check.faults import Fault, Kind, Passing, Phase, Step, Victim
from pybroker.eos_check.inner_steps import INNER, is_inner
from pybroker.eos_check.plan import Plan, interleaved, pairs, singles, spread

SEND = Passing(Step("SEND", "out"), Phase.AFTER)
ACK = Passing(Step("ACK", "in"), Phase.BEFORE)
SUBSCRIBE = Passing(Step("SUBSCRIBE", "in"), Phase.BEFORE)


@given(st.integers(0, 300))
def test_each_number_is_tried_once(count: int) -> None:
    assert sorted(spread(count)) == list(range(1, count + 1))


def test_the_middle_then_the_ends_come_first():
    assert list(spread(9))[:3] == [5, 1, 9]


def test_each_passing_is_tried_with_each_victim():
    plan = singles([SUBSCRIBE, SEND, ACK, SEND, ACK])
    assert len(plan) == len(set(plan)) == 10
    assert {fault.victim for fault in plan} == set(Victim)


def test_all_kinds_come_before_the_second_of_one():
    plan = singles([SUBSCRIBE, SEND, ACK, SEND, ACK])
    assert [fault.passing for fault in plan[:6]] == [SEND, ACK, SUBSCRIBE] * 2


def test_a_second_fault_is_one_behind_the_first():
    first = Fault(Victim.PIPELINE, SEND, 2)
    assert all(pair[0] == first for pair in pairs(first, [ACK]))
    assert {pair[1].victim for pair in pairs(first, [ACK])} == set(Victim)


def test_pairs_are_taken_from_each_first_fault_in_turn():
    one, two = (Fault(Victim.PIPELINE, SEND, number) for number in (1, 2))
    plan = interleaved([pairs(one, [ACK, SEND]), pairs(two, [ACK, SEND])])
    assert [pair[0] for pair in plan[:2]] == [one, two]
    assert plan[0][1] != plan[1][1]
    assert len(plan) == len(set(plan)) == 8


def test_a_fault_says_where_it_strikes():
    fault = Fault(Victim.BROKER, SEND, 3)
    assert str(fault) == "broker killed after SEND out #3 is done, before its answer"


def test_what_happens_within_the_broker_kills_the_broker_only():
    assert {step for step, _ in map(named, INNER.values())} >= {
        "transaction.decided",
        "transaction.marker",
        "transaction.pending_ack",
        "transaction.completed",
    }
    decided = INNER["transaction.decided.after"]
    plan = singles([SEND], {decided: 2})
    within = [fault for fault in plan if is_inner(fault)]
    assert [(fault.victim, fault.number) for fault in within] == [
        (Victim.BROKER, 1),
        (Victim.BROKER, 2),
    ]
    assert str(within[0]) == "broker killed after transaction.decided #1"


def named(passing: Passing) -> tuple[str, str]:
    return passing.step.command, passing.phase.value


def planned(*passings: Passing) -> tuple[Plan, list[Kind]]:
    faults = singles(passings)
    kinds = list(dict.fromkeys(fault.kind for fault in faults))
    return Plan([(fault,) for fault in faults], kinds), kinds


def test_a_kind_that_was_missed_is_tried_again_before_second_ones_of_others():
    plan, kinds = planned(ACK, ACK, ACK, SEND, SEND, SEND)
    for _ in kinds:
        (fault,) = plan.take()
        plan.has_run((fault,), struck=fault.kind != Kind(Victim.BROKER, ACK))
    assert plan.take() == (Fault(Victim.BROKER, ACK, 1),)
    assert plan.take() == (Fault(Victim.PIPELINE, SEND, 1),)


def test_when_time_is_over_only_kinds_that_did_not_strike_are_left():
    plan, kinds = planned(SEND, SEND, SUBSCRIBE)
    taken = []
    while (schedule := plan.take(new_kinds_only=True)) is not None:
        plan.has_run(schedule, struck=True)
        taken.append(schedule[0].kind)
    assert sorted(map(str, taken)) == sorted(map(str, kinds))
    assert not plan.is_finished
    assert (plan.not_tried, plan.not_reached) == ([], [])


def test_a_kind_is_not_tried_by_a_run_that_missed_its_step():
    plan, kinds = planned(SEND, SEND)
    assert plan.not_tried == kinds
    for _ in range(4):
        schedule = plan.take()
        plan.has_run(schedule, struck=schedule[0].victim is Victim.BROKER)
    assert plan.take() is None
    assert plan.not_tried == []
    assert plan.not_reached == [Kind(Victim.PIPELINE, SEND)]


def test_all_schedules_are_taken_once():
    plan, _ = planned(SEND, SEND, ACK, SUBSCRIBE, ACK, ACK)
    taken = []
    while (schedule := plan.take()) is not None:
        plan.has_run(schedule, struck=len(taken) % 2 == 0)
        taken.append(schedule)
    assert len(taken) == len(set(taken)) == len(plan) == 12
