"""EXACTLY ONCE is reported only if each kind of crash was tried."""

import pytest

from pybroker.eos_check.exploration import Explored
from pybroker.eos_check.faults import Kind, Passing, Phase, Step, Victim
from pybroker.eos_check.settings import Settings
from pybroker.eos_check.verdict import report

KINDS = [
    Kind(Victim.PIPELINE, Passing(Step(command, "t"), phase))
    for command in ("SEND", "ACK")
    for phase in Phase
]


def explored(**values) -> Explored:
    return Explored(singles=40, singles_tried=9, kinds=8, runs=9, run_s=3.1, **values)


def test_all_kinds_without_a_breach_are_exactly_once(capsys, tmp_path):
    page = tmp_path / "page.html"
    assert report(Settings(("run",)), explored(out_of_time=True), page, 12.0) == 0
    said = capsys.readouterr().out
    assert "8 of 8 kinds of crash, 9 of 40 single crashes" in said
    assert "\nEXACTLY ONCE, at 9 of 40 crashes\n" in said
    assert 'class="good"' in page.read_text()


def test_a_kind_that_time_left_out_leaves_it_undecided(capsys, tmp_path):
    page = tmp_path / "page.html"
    found = explored(out_of_time=True, not_tried=KINDS)
    assert report(Settings(("run",)), found, page, 12.0) == 2
    said = capsys.readouterr().out
    assert "4 of 8 kinds of crash" in said
    assert "pipeline killed before SEND t; pipeline killed after SEND t; " in said
    assert "; and 1 more. Choose --time-limit 60, or leave it out" in said
    assert "\nCOULD NOT BE JUDGED\n" in said
    assert "EXACTLY" not in said
    assert 'class="good"' not in page.read_text()


def test_a_kind_that_no_run_reached_leaves_it_undecided(capsys):
    found = explored(missed=3, not_reached=KINDS[:1])
    assert report(Settings(("run",)), found, None, 12.0) == 2
    said = capsys.readouterr().out
    assert "no later run reached these steps: pipeline killed before SEND t. Does" in said
    assert "time-limit" not in said


@pytest.mark.parametrize("kinds", [0, 1])
def test_a_counter_example_is_enough(capsys, kinds, a_counter_example):
    found = explored(not_tried=KINDS[:kinds], counter_example=a_counter_example)
    assert report(Settings(("run",)), found, None, 12.0) == 1
    assert "\nNOT EXACTLY ONCE\n" in capsys.readouterr().out


@pytest.fixture
def a_counter_example():
    from pybroker.eos_check.exploration import CounterExample
    from pybroker.eos_check.judgement import Breach, Promise
    from pybroker.eos_check.run_result import RunResult

    return CounterExample(Settings(("run",)), RunResult(()), [Breach(Promise.LOST, "x")])
