"""Crashes in sequence in one run: which comes next, and which one is to blame."""

from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.faults import Fault, Kind, Passing, Phase, Step, Victim
from pybroker.eos_check.judgement import Breach, Promise
from pybroker.eos_check.run_result import RunResult
from pybroker.eos_check.series import Series, suspects

SEND = Passing(Step("SEND", "out"), Phase.AFTER)
SUBSCRIBE = Passing(Step("SUBSCRIBE", "in"), Phase.BEFORE)
PIPELINE_SENDS, BROKER_SENDS = Kind(Victim.PIPELINE, SEND), Kind(Victim.BROKER, SEND)
BROKER_SUBSCRIBES = Kind(Victim.BROKER, SUBSCRIBE)


def series(*kinds: Kind) -> Series:
    return Series(kinds, frozenset({SUBSCRIBE}), lambda: True)


def test_a_step_of_the_start_is_struck_while_the_pipeline_starts():
    crashes = series(PIPELINE_SENDS, BROKER_SUBSCRIBES).begin()
    taken = [crashes.take(starting=True) for _ in range(2)]
    assert taken == [Fault(Victim.BROKER, SUBSCRIBE, 1), None]
    assert crashes.take(starting=False) == Fault(Victim.PIPELINE, SEND, 1)


def test_a_step_of_the_start_is_struck_at_no_other_time():
    left = series(BROKER_SUBSCRIBES)
    assert left.begin().take(starting=False) is None
    assert left.has_more


def test_a_crash_that_a_run_missed_comes_once_more_while_the_pipeline_starts():
    left = series(BROKER_SENDS)
    for starting in (False, True):
        crashes = left.begin()
        assert crashes.take(starting=not starting) is None
        fault = crashes.take(starting=starting)
        assert fault is not None
        crashes.missed.append(fault)
        left.end(crashes, judged=True)
    assert not left.has_more
    assert not left.struck


def test_the_crashes_of_a_run_that_cannot_be_judged_do_not_count():
    left = series(BROKER_SENDS)
    crashes = left.begin()
    fault = crashes.take(starting=False)
    assert fault is not None
    crashes.struck.append(fault)
    left.end(crashes, judged=False)
    assert not left.struck
    assert left.has_more


def test_the_crashes_of_runs_under_way_are_shown():
    left = series(PIPELINE_SENDS, BROKER_SENDS)
    ended, under_way = left.begin(), left.begin()
    for crashes in (ended, under_way):
        fault = crashes.take(starting=False)
        assert fault is not None
        crashes.struck.append(fault)
    assert left.struck_with([ended, under_way]) == 2
    left.end(ended, judged=True)
    assert left.struck_with([under_way]) == 2
    assert left.struck_with([]) == 1


def test_the_crash_at_the_wrong_message_is_the_first_suspect():
    faults = tuple(Fault(Victim.BROKER, SEND, number) for number in (1, 2, 3, 4, 5))
    events = []
    for number, fault in enumerate(faults, start=1):
        events.append(Event("INPUT", note=f"eos-00000{number} to eos-00000{number}"))
        events.append(Event("FAULT", note=str(fault)))
    result = RunResult(faults, events=events, was_series=True)
    found = suspects(result, [Breach(Promise.DOUBLED, "", ("eos-000002",))])
    assert found == [(faults[1],), (faults[4],), (faults[3],)]
