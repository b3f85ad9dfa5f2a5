"""The whole check ends within its time limit, which only kinds of crash that are missing extend."""

import pytest

from pybroker.eos_check import exploration
from pybroker.eos_check.exploration import TIME_LIMIT_S, Exploration, Explored
from pybroker.eos_check.faults import Passing, Phase, Step
from pybroker.eos_check.run import RunResult
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.topics import Output

OUTPUTS = (Output("out", "k", b"eos-000001"),)
PASSINGS = [Passing(Step(command, "t"), phase) for command in ("SEND", "ACK") for phase in Phase]
KINDS = 2 * len(PASSINGS)  # of the pipeline and of the broker
OF_EACH = 100  # passings


class World:
    """Each run takes `run_s` of a clock that only runs advance."""

    def __init__(self, run_s: float) -> None:
        self.now_s = 5000.0
        self.run_s = run_s

    def monotonic(self) -> float:
        return self.now_s

    def clean_run(self, *_: object) -> RunResult:
        self.now_s += self.run_s
        return RunResult((), OUTPUTS, passings=[PASSINGS * OF_EACH], duration_s=self.run_s)

    def run(self, _: object, schedule: tuple[object, ...], *__: object) -> RunResult:
        self.now_s += self.run_s
        passings = [PASSINGS for _ in range(1 + len(schedule))]
        return RunResult((), OUTPUTS, passings=passings, duration_s=self.run_s)


def explored(
    monkeypatch: pytest.MonkeyPatch, world: World, limit_s: float | None = None
) -> tuple[Explored, float]:
    """And how long it took."""
    for name in ("run", "clean_run"):
        monkeypatch.setattr(exploration, name, getattr(world, name))
    monkeypatch.setattr(exploration, "time", world)
    began_s = world.now_s
    show = say = lambda *_: None
    check = Exploration(
        Settings(("run",)), time_limit_s=limit_s, pairs_at_most=5, jobs=1, say=say, show=show
    )
    return check.explore(), world.now_s - began_s


def test_the_runs_without_faults_and_the_last_run_are_within_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, took_s = explored(monkeypatch, World(7.0))
    assert took_s == TIME_LIMIT_S // 7 * 7
    assert found.out_of_time
    assert found.singles_tried == TIME_LIMIT_S // 7 - 2
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
