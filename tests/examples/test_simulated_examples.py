"""The pipelines of examples/simulated: each wrong one fails, and the right one passes."""

import runpy
import subprocess

import pytest
from documents import ROOT, blocks
from typed_commands import environment_with_pybroker

from pybroker.simulation import BrokenPromise, simulate

FOLDER = ROOT / "examples/simulated"
WRONG = {
    "ack_before_send": "LOST",
    "dedup_by_memory": "DOUBLED",
    "kafka_auto_commit": "DOUBLED",
    "send_then_ack": "DOUBLED",
}
RIGHT = ("exactly_once", "kafka_exactly_once")


def scenario_of(name: str):
    return runpy.run_path(str(FOLDER / f"{name}.py"))["scenario"]


def test_every_example_is_right_or_wrong():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted([*WRONG, *RIGHT])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_pipeline_is_found_within_200_seeds_and_shrunk_to_three_faults(name):
    with pytest.raises(BrokenPromise) as caught:
        simulate(scenario_of(name), seeds=200)
    outcome = caught.value.outcome
    assert outcome.violations[0].kind == WRONG[name]
    assert len(outcome.chosen) <= 3
    assert f"pybroker simulate MODULE:FUNCTION --seed {outcome.seed}" in str(caught.value)


@pytest.mark.slow
def test_the_command_of_the_examples_page_finds_what_is_wrong(tmp_path):
    (block,) = blocks(ROOT / "examples/simulated/README.md")
    ended = subprocess.run(
        block.text.split(),
        cwd=ROOT,
        env=environment_with_pybroker(tmp_path / "bin"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert WRONG["send_then_ack"] in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_pipeline_keeps_every_promise(name):
    simulate(scenario_of(name), seeds=15)


@pytest.mark.slow
def test_the_right_pipeline_keeps_every_promise_for_200_seeds():
    simulate(scenario_of("exactly_once"), seeds=200)
