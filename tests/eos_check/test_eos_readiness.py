"""When a run of a series may crash again: as soon as all that belongs to the input is there."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pybroker.eos_check.run import _QUIET_S, _RECOVERED_S, _Run
from pybroker.eos_check.run_result import Clean
from pybroker.eos_check.series import Series
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.topics import Output
from pybroker.testing.broker_process import BrokerProcess

ONE, TWO = Output("out", "", b"eos-000001"), Output("out", "", b"eos-000002")
CAUGHT_UP = {"s": 0}


class Outputs:
    """Of a topic that nobody has yet; counts how often it is read."""

    def __init__(self) -> None:
        self.there: tuple[Output, ...] = ()
        self.readings = 0

    def read(self, _: Sequence[str]) -> tuple[Output, ...]:
        self.readings += 1
        return self.there


def a_run_with_one_input(outputs: Outputs) -> _Run:
    settings = Settings((), messages=2)
    clean = Clean((ONE, TWO), frozenset(CAUGHT_UP), True, 1.0)
    crashes = Series((), frozenset(), lambda: True).begin()
    broker = BrokerProcess(Path("unused"))
    run = _Run(settings, (), clean, threading.Event(), broker, crashes)
    run._topics = outputs  # type: ignore[assignment]
    run._pipeline = type("Pipeline", (), {"lives": 0})()  # type: ignore[assignment]
    run.result.inputs.append((settings.inputs()[0], (0, 0)))
    return run


def test_a_run_does_not_wait_when_all_outputs_are_there() -> None:
    outputs = Outputs()
    run = a_run_with_one_input(outputs)
    assert not run._is_ready_for_a_crash(CAUGHT_UP, _QUIET_S)
    outputs.there = (ONE,)
    run._moved_s = time.monotonic()  # a request that brought it
    assert not run._is_ready_for_a_crash(CAUGHT_UP, _QUIET_S / 2)
    assert not run._is_ready_for_a_crash({"s": 1}, _QUIET_S)
    assert run._is_ready_for_a_crash(CAUGHT_UP, _QUIET_S)


def test_outputs_are_read_once_after_each_request() -> None:
    outputs = Outputs()
    run = a_run_with_one_input(outputs)
    for _ in range(3):
        assert not run._is_ready_for_a_crash(CAUGHT_UP, _QUIET_S)
    assert outputs.readings == 1


def test_a_run_without_an_output_goes_on_when_nothing_happens() -> None:
    """Not each input has one, and not each output names its input."""
    run = a_run_with_one_input(Outputs())
    assert run._is_ready_for_a_crash(CAUGHT_UP, _RECOVERED_S)
