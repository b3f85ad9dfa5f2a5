"""When a run of a series may crash again: once all effects of the input are visible."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pybroker.eos_check import asked, run
from pybroker.eos_check.run_result import Clean
from pybroker.eos_check.series import Series
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.topics import Output
from pybroker.testing.broker_process import BrokerProcess

ONE, TWO = Output("out", "", b"eos-000001"), Output("out", "", b"eos-000002")


class Topics:
    """The pipeline has acknowledged everything, without output yet. Counts the questions."""

    def __init__(self) -> None:
        self.backlog = 0
        self.there: tuple[Output, ...] = ()
        self.asked = {"read": 0, "backlogs": 0}

    def read(self, _: Sequence[str]) -> tuple[Output, ...]:
        self.asked["read"] += 1
        return self.there

    def backlogs(self, _: str) -> dict[str, int]:
        self.asked["backlogs"] += 1
        return {"s": self.backlog}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (asked, run):
        monkeypatch.setattr(module, "time", clock)
    return clock


def a_run_with_one_input(topics: Topics) -> run._Run:
    settings = Settings((), messages=2)
    clean = Clean((ONE, TWO), frozenset({"s"}), True, 1.0)
    crashes = Series((), frozenset(), lambda: True).begin()
    broker = BrokerProcess(Path("unused"))
    a_run = run._Run(settings, (), clean, threading.Event(), broker, crashes)
    a_run._topics = topics  # type: ignore[assignment]
    a_run._pipeline = type("Pipeline", (), {"lives": 0})()  # type: ignore[assignment]
    a_run.result.inputs.append((settings.inputs()[0], (0, 0)))
    return a_run


def has_moved(a_run: run._Run, topics: Topics, clock: Clock, *there: Output) -> None:
    """A request passes the proxy; afterwards these outputs exist."""
    topics.there = there
    clock.now_s += 0.01
    a_run._moved_s = clock.now_s
    clock.now_s += run._QUIET_S


def test_a_run_does_not_wait_when_all_outputs_are_there(clock: Clock) -> None:
    topics = Topics()
    a_run = a_run_with_one_input(topics)
    has_moved(a_run, topics, clock)
    assert not a_run._is_ready_for_a_crash(run._QUIET_S)
    has_moved(a_run, topics, clock, ONE)
    assert not a_run._is_ready_for_a_crash(run._QUIET_S / 2)
    assert a_run._is_ready_for_a_crash(run._QUIET_S)


def test_a_run_waits_until_its_input_is_acknowledged(clock: Clock) -> None:
    topics = Topics()
    a_run = a_run_with_one_input(topics)
    topics.backlog = 1
    has_moved(a_run, topics, clock, ONE)
    assert not a_run._is_ready_for_a_crash(run._RECOVERED_S)


def test_a_run_asks_the_broker_once_after_each_request(clock: Clock) -> None:
    """While a pipeline works or starts, the CPU is left to it."""
    topics = Topics()
    a_run = a_run_with_one_input(topics)
    for requests in (1, 2):
        has_moved(a_run, topics, clock)
        for _ in range(3):
            assert not a_run._is_ready_for_a_crash(run._QUIET_S / 2)
            assert not a_run._is_ready_for_a_crash(run._QUIET_S)
        assert topics.asked == {"read": requests, "backlogs": requests}


def test_a_run_asks_again_without_a_request(clock: Clock) -> None:
    """A transaction's acknowledgements may take effect after its commit was answered."""
    topics = Topics()
    a_run = a_run_with_one_input(topics)
    topics.backlog = 1
    has_moved(a_run, topics, clock, ONE)
    assert not a_run._is_ready_for_a_crash(run._QUIET_S)
    topics.backlog = 0
    clock.now_s += 1.0
    assert a_run._is_ready_for_a_crash(run._QUIET_S)


def test_a_run_asks_nothing_while_the_pipeline_starts() -> None:
    topics = Topics()
    a_run = a_run_with_one_input(topics)
    a_run._pipeline.lives = 1
    assert not a_run._is_ready_for_a_crash(run._NEXT_WAVE_WITHIN_S)
    assert topics.asked == {"read": 0, "backlogs": 0}


def test_a_broker_that_somebody_else_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> bool:
        raise ConnectionRefusedError("Connection refused")

    a_run = a_run_with_one_input(Topics())
    monkeypatch.setattr(a_run, "_is_over", refused)
    monkeypatch.setattr(a_run._broker, "wait_until_ended", lambda _: -9)
    with pytest.raises(RuntimeError, match="ended with code -9, and eos-check had not killed it"):
        a_run._is_over_or_down()


def test_a_run_without_an_output_goes_on_when_nothing_happens() -> None:
    """Some inputs have no output, and some outputs do not name their input."""
    a_run = a_run_with_one_input(Topics())
    assert a_run._is_ready_for_a_crash(run._RECOVERED_S)
