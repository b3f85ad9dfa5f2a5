"""EXACTLY ONCE is reported only if each kind of crash was tried."""

import pytest

from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.exploration import CounterExample, Explored, _unjudged
from pybroker.eos_check.faults import Kind, Passing, Phase, Step, Victim
from pybroker.eos_check.judgement import Breach, Promise
from pybroker.eos_check.run_result import RunResult
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
    return CounterExample(Settings(("run",)), RunResult(()), [Breach(Promise.LOST, "x")])


def test_a_topic_that_nobody_judged_is_named_with_the_verdict(capsys):
    assert report(Settings(("run",)), explored(unjudged=["audit-log"]), None, 12.0) == 0
    said = capsys.readouterr().out
    assert "the pipeline also writes to audit-log, which nobody judges: add --output audit" in said
    assert "\nEXACTLY ONCE, at 9 of 40 crashes, but audit-log was not judged\n" in said


def test_topics_that_are_judged_or_read_are_not_named():
    settings = Settings(("run",), outputs=("persistent://public/default/out", "second"))
    steps = [Step("SUBSCRIBE", "stages"), *(Step("SEND", topic) for topic in WRITTEN)]
    passings = [Passing(step, phase) for step in steps for phase in Phase]
    assert _unjudged(settings, RunResult((), passings=[passings])) == [
        "audit",
        "persistent://t/n/log",
    ]


def test_topics_of_kafka_clients_are_judged_read_or_named_too():
    """What they read is known by the offsets that they commit."""
    steps = [
        Step("PRODUCE", "eos-output, second, stages"),
        Step("PRODUCE", "audit"),
        Step("PRODUCE"),  # to topics whose names are unknown
        Step("TXN_OFFSET_COMMIT", "eos-input"),
        Step("TXN_OFFSET_COMMIT", "stages"),
    ]
    passings = [Passing(step, phase) for step in steps for phase in Phase]
    settings = Settings(("run",))
    assert _unjudged(settings, RunResult((), passings=[passings])) == ["audit", "second"]


WRITTEN = (
    "out",
    "persistent://public/default/second-partition-1",
    "eos-input",  # back into the input
    "stages",
    "audit-partition-0",
    "audit-partition-1",
    "persistent://t/n/log",
)


@pytest.mark.parametrize("event", ["stuck", "PIPELINE ENDED"])
def test_a_pipeline_that_could_not_go_on_has_the_last_word(capsys, tmp_path, event):
    page = tmp_path / "page.html"
    result = RunResult((), log="first\nREASON: \x1b[31mthe lock is still there\n")
    if event == "stuck":
        result.stuck = "it exited on its own 21 times, the last time with code 1"
    else:
        result.events.append(Event(event))
    example = CounterExample(Settings(("run",)), result, [Breach(Promise.STUCK, "x")])
    assert report(Settings(("run",)), explored(counter_example=example), page, 12.0) == 1
    said = capsys.readouterr().out
    assert "  the pipeline's last output:\n" in said
    assert "REASON: " in said
    assert "\x1b[31m" not in said.partition("REASON")[2].partition("\n")[0]
    assert "the lock is still there" in page.read_text()


def test_a_pipeline_that_went_on_has_no_last_word(capsys, a_counter_example):
    a_counter_example.result.log = "hello"
    report(Settings(("run",)), explored(counter_example=a_counter_example), None, 12.0)
    assert "hello" not in capsys.readouterr().out
