"""The whole check ends within its time limit. Only untried kinds of crash extend it."""

import threading
from typing import Any

import pytest

from pybroker.eos_check import exploration
from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.exploration import TIME_LIMIT_S, Exploration, Explored
from pybroker.eos_check.faults import Kind, Passing, Phase, Schedule, Step, Victim
from pybroker.eos_check.run_result import RunResult
from pybroker.eos_check.series import CrashesOfRun
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.topics import Output

OUTPUTS = (Output("out", "k", b"eos-000001"),)
PASSINGS = [Passing(Step(command, "t"), phase) for command in ("SEND", "ACK") for phase in Phase]
KINDS = 2 * len(PASSINGS)  # by pipeline and by broker
PAIRS = 5
OF_EACH = 100  # passings


class World:
    """Each run takes `run_s` of a clock that only runs advance."""

    def __init__(self, run_s: float) -> None:
        self.now_s = 5000.0
        self.run_s = run_s
        self.recording_s: float | None = None  # of the clean run that records classes
        self.never_reached: set[Kind] = set()  # in a series
        self.doubling: set[Kind] = set()
        self.at_start: set[Passing] = set()  # steps of a start only, but many

    def monotonic(self) -> float:
        return self.now_s

    def clean_run(self, settings: Settings, _: object) -> RunResult:
        took_s = self.run_s
        if settings.records_classes and self.recording_s is not None:
            took_s = self.recording_s
        self.now_s += took_s
        starting = PASSINGS * OF_EACH
        working = [each for each in starting if each not in self.at_start]
        return RunResult(
            (),
            OUTPUTS,
            passings=[starting + working],
            before_last_input=len(starting),
            duration_s=took_s,
            busy_s=took_s,
        )

    def run(
        self,
        settings: Settings,
        schedule: Schedule,
        _: object,
        __: object,
        series: CrashesOfRun | None = None,
    ) -> RunResult:
        if series is not None:
            return self.run_of_series(settings, series)
        self.now_s += self.run_s
        passings = [PASSINGS for _ in range(1 + len(schedule))]
        return RunResult(schedule, self.outputs(schedule), passings=passings, duration_s=self.run_s)

    def run_of_series(self, settings: Settings, series: CrashesOfRun) -> RunResult:
        """A crash of the pipeline costs another start; one of the broker, 2 s."""
        began_s = self.now_s
        self.now_s += self.run_s
        events = []
        starting, inputs = True, settings.inputs()[:-1]
        while inputs:
            fault = series.take(starting=starting)
            if not starting:
                each = inputs.pop(0)
                events.append(Event("INPUT", note=f"{each.id} to {each.id}"))
                if fault is None:
                    break
            is_missed = False
            if fault is not None:
                comes = starting or fault.passing not in self.at_start
                is_missed = fault.kind in self.never_reached or not comes
                (series.missed if is_missed else series.struck).append(fault)
            starting = False
            if fault is not None and not is_missed:
                events.append(Event("FAULT", note=str(fault)))
                starting = fault.victim is Victim.PIPELINE
                self.now_s += self.run_s if starting else 2.0
        faults = tuple(series.struck)
        return RunResult(
            faults,
            self.outputs(faults),
            passings=[PASSINGS for _ in range(1 + len(faults))],
            events=events,
            duration_s=self.now_s - began_s,
            was_series=True,
        )

    def outputs(self, faults: Schedule) -> tuple[Output, ...]:
        return OUTPUTS * (1 + any(fault.kind in self.doubling for fault in faults))


def explored(
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    limit_s: float | None = None,
    messages: int = 2,  # too few for a series
    jobs: int = 1,
) -> tuple[Explored, float]:
    """The result, and its duration."""
    for name in ("run", "clean_run"):
        monkeypatch.setattr(exploration, name, getattr(world, name))
    monkeypatch.setattr(exploration, "time", world)
    began_s = world.now_s
    show = say = lambda *_: None
    settings = Settings(("run",), messages=messages)
    check = Exploration(
        settings, time_limit_s=limit_s, pairs_at_most=PAIRS, jobs=jobs, say=say, show=show
    )
    return check.explore(), world.now_s - began_s


def test_the_runs_without_faults_and_the_last_run_are_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, took_s = explored(monkeypatch, World(7.0))
    assert took_s == TIME_LIMIT_S // 7 * 7
    assert found.out_of_time
    assert found.singles_tried + PAIRS == TIME_LIMIT_S // 7 - 2
    assert found.pairs_tried == PAIRS
    assert not found.not_tried


def test_kinds_that_are_missing_extend_the_default_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, took_s = explored(monkeypatch, World(80.0))
    assert not found.not_tried
    assert found.singles_tried == KINDS
    assert took_s == (2 + KINDS) * 80.0


def test_a_limit_of_the_user_is_not_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    found, took_s = explored(monkeypatch, World(80.0), 400.0)
    assert took_s == 400.0
    assert len(found.not_tried) == KINDS - 3
    assert (found.clean_s, found.run_s) == (160.0, 80.0)


def test_pairs_come_before_second_crashes_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = explored(monkeypatch, World(10.0), (2 + KINDS + PAIRS) * 10.0)
    assert (found.singles_tried, found.pairs_tried) == (KINDS, PAIRS)


def test_a_pipeline_that_starts_slowly_crashes_several_times_in_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Separate runs would take (2 + 8) * 60 s."""
    found, took_s = explored(monkeypatch, World(60.0), messages=12)
    assert (found.singles_tried, found.in_series, found.series_runs) == (KINDS, KINDS, 1)
    assert not found.not_tried
    of_pipeline = KINDS // 2
    assert took_s == (3 + of_pipeline) * 60.0 + of_pipeline * 2.0


def test_a_crash_of_the_pipeline_starts_it_twice_which_a_run_of_its_own_has_no_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would fit if each took as long as a run without faults."""
    found, took_s = explored(monkeypatch, World(TIME_LIMIT_S / (2 + KINDS)), messages=12)
    assert (found.in_series, found.singles_tried >= KINDS) == (KINDS, True)
    assert took_s <= TIME_LIMIT_S


def test_a_step_that_only_the_start_takes_needs_no_run_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds however often the start takes it."""
    world = World(60.0)
    world.at_start = {PASSINGS[0]}
    found, _ = explored(monkeypatch, world, messages=12)
    assert (found.in_series, found.missed, found.series_runs) == (KINDS, 0, 1)


def test_the_run_that_records_classes_does_not_count_for_how_long_the_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(TIME_LIMIT_S / 50)
    world.recording_s = TIME_LIMIT_S / 3
    found, took_s = explored(monkeypatch, world, messages=12)
    assert (found.in_series, found.singles_tried >= KINDS) == (0, True)
    assert took_s <= TIME_LIMIT_S


def test_the_counter_example_does_not_depend_on_which_run_ends_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first run waits for the second one to end."""
    world, second = World(1.0), threading.Event()
    first = Kind(Victim.PIPELINE, Passing(Step("SEND", "t"), Phase.AFTER))
    world.doubling = {Kind(Victim.PIPELINE, passing) for passing in PASSINGS}
    play = world.run

    def run(settings: Settings, schedule: Schedule, *others: Any) -> RunResult:
        if schedule[0].kind == first:
            assert second.wait(30)
        result = play(settings, schedule, *others)
        second.set()
        return result

    monkeypatch.setattr(world, "run", run)
    found, _ = explored(monkeypatch, world, jobs=2)
    assert found.counter_example is not None
    (fault,) = found.counter_example.result.schedule
    assert fault.kind == first


def test_a_series_ends_within_the_limit_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    found, took_s = explored(monkeypatch, World(60.0), 340.0, messages=12)
    assert took_s <= 340.0
    assert 3 < found.singles_tried < KINDS
    assert len(found.not_tried) == KINDS - found.singles_tried
    assert found.out_of_time


def test_a_kind_that_no_series_reaches_has_runs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(60.0)
    world.never_reached = {Kind(Victim.BROKER, PASSINGS[0])}
    found, _ = explored(monkeypatch, world, messages=12)
    assert (found.in_series, found.singles_tried) == (KINDS - 1, KINDS)
    assert not found.not_tried
    assert not found.not_reached


def test_a_crash_of_a_series_is_shown_alone_if_it_breaks_the_promise_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(60.0)
    world.doubling = {Kind(Victim.PIPELINE, PASSINGS[1])}
    found, _ = explored(monkeypatch, world, messages=12)
    assert found.counter_example is not None
    (fault,) = found.counter_example.result.schedule
    assert fault.kind in world.doubling
    assert found.counter_example.settings.messages == 1
