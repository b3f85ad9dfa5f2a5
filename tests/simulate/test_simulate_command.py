"""`pybroker simulate` on the command line."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pybroker.simulation.main import main

EXAMPLES = Path(__file__).parents[2] / "examples/simulated"
WRONG = f"{EXAMPLES}/send_then_ack.py:scenario"


def simulated(*arguments, cwd=None, hash_seed=None):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = hash_seed
    return subprocess.run(
        [sys.executable, "-m", "pybroker", "simulate", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
def test_a_failing_seed_is_found_shrunk_and_replayed():
    ended = simulated(WRONG, "--seeds", "200", "--jobs", "2")
    assert ended.returncode == 1, ended.stderr
    assert "DOUBLED: 'orders-" in ended.stdout
    assert "FAULT" in ended.stdout
    (again,) = re.findall(r"^again: pybroker simulate (.*)$", ended.stdout, re.MULTILINE)
    (history,) = re.findall(r"^history (\w+)", ended.stdout, re.MULTILINE)
    replayed = simulated(*again.split())
    assert replayed.returncode == 1
    assert f"history {history}," in replayed.stdout


@pytest.mark.slow
def test_a_seed_has_one_history_whatever_hashes_are():
    """No recorded constant is compared: each Python's asyncio takes different steps, and each
    change of the broker may change the history.
    """
    stories = [simulated(WRONG, "--seed", "7", hash_seed=seed) for seed in ("1", "2")]
    assert stories[0].stdout == stories[1].stdout
    assert "history " in stories[0].stdout


@pytest.mark.slow
def test_a_pipeline_that_keeps_its_promises_ends_with_0(tmp_path):
    """The module is imported from the current folder; its output is not shown."""
    (tmp_path / "mine.py").write_text(
        "import sys\n"
        "async def work():\n    print('hello')\n    print('hello', file=sys.stderr)\n"
        "def scenario(sim):\n    sim.process('p', work)\n"
    )
    ended = simulated("mine:scenario", "--seeds", "25", "--jobs", "1", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "25 seeds, no process failed an assertion" in ended.stdout
    assert "hello" not in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nothing", "write MODULE:FUNCTION"),
        ("no_such_module:f", "no_such_module cannot be imported"),
        ("no_such_file.py:f", "no_such_file.py cannot be imported"),
        ("json:f", "json has no function f"),
    ],
)
def test_a_target_that_is_not_there_is_named(target, says, tmp_path):
    ended = simulated(target, "--seeds", "1", cwd=tmp_path)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_loop_without_an_await_is_ended(tmp_path):
    """In a separate process, because pytest's time limits use the same signal."""
    script = (
        "from pybroker.simulation import main\n"
        "async def work():\n    while True: pass\n"
        "def scenario(sim): sim.process('p', work)\n"
        "main._SEED_LIMIT_S = 1.0\n"
        "main._begin()\n"
        "main._limited(scenario, 3, None)\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert "ScenarioError: seed 3 did not end within 1 s of real time" in ended.stderr


@pytest.mark.slow
def test_a_loop_that_catches_what_is_to_end_it_is_killed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import signal\n"
        "def spin():  # in a function: a loop's jump back is not always within the try around it\n"
        "    while True: sorted(range(100_000))\n"
        "async def work():\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)  # the limit, which has come\n"
        "    while True:\n"
        "        try:\n"
        "            spin()\n"
        "        except BaseException: pass\n"
        "def scenario(sim): sim.process('p', work)\n"
    )
    ended = simulated("mine:scenario", "--seeds", "4", "--start", "3", "--jobs", "1", cwd=tmp_path)
    assert ended.returncode == 2
    assert "pybroker: seed 3 did not end within" in ended.stderr
    assert "Let BaseException pass" in ended.stderr


@pytest.mark.slow
def test_an_interrupt_of_the_code_itself_is_not_taken_for_the_user_s(tmp_path):
    (tmp_path / "mine.py").write_text(
        "async def work(): raise KeyboardInterrupt\ndef scenario(sim): sim.process('p', work)\n"
    )
    ended = simulated("mine:scenario", "--seeds", "1", cwd=tmp_path)
    assert ended.returncode == 2
    assert "seed 0: the code raised KeyboardInterrupt" in ended.stderr


@pytest.mark.slow
def test_a_scenario_that_raises_is_shown_where(tmp_path):
    (tmp_path / "mine.py").write_text("def scenario(sim):\n    return sim.no_such_thing\n")
    ended = simulated("mine:scenario", "--seeds", "1", cwd=tmp_path)
    assert ended.returncode == 2
    assert 'mine.py", line 2, in scenario' in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import sys\nsys.exit(0)\n", "mine cannot be imported: SystemExit: 0"),
        ("import sys\ndef scenario(sim):\n    sys.exit(0)\n", "the scenario failed:"),
    ],
)
def test_code_that_exits_is_no_success(source, says, tmp_path):
    (tmp_path / "mine.py").write_text(source)
    ended = simulated("mine:scenario", "--seeds", "1", cwd=tmp_path)
    assert ended.returncode == 2
    assert says in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_no_process_outlives_the_command(number, code, tmp_path):
    """The processes' descriptors are closed with them, so the pipe ends."""
    (tmp_path / "mine.py").write_text(
        "import os, sys\n"
        "async def work():\n    while True: pass\n"
        "def scenario(sim):\n"
        "    os.write(2, b'runs\\n')\n"
        "    sim.process('p', work)\n"
    )
    command = [sys.executable, "-m", "pybroker", "simulate", "mine:scenario", "--jobs", "1"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Commands that a shell starts in the background ignore SIGINT.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"runs\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=50)  # less than the limit of a seed
    assert process.returncode == code
    assert b"Traceback" not in said


@pytest.mark.slow
def test_nobody_reads_the_report_to_its_end(tmp_path):
    command = [sys.executable, "-m", "pybroker", "simulate", WRONG, "--seed", "0"]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=240, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (2, "")


@pytest.mark.slow
def test_a_fault_that_the_seed_does_not_draw_is_refused():
    ended = simulated(WRONG, "--seed", "0", "--faults", "9")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "seed 0 draws 5 faults, not more" in ended.stderr


def test_numbers_are_checked(capsys):
    with pytest.raises(SystemExit) as ended:
        main([WRONG, "--seeds", "0"])
    assert ended.value.code == 2
    assert "0 is not a number from 1 to 99,999,999" in capsys.readouterr().err


def test_faults_without_a_seed_are_refused(capsys):
    with pytest.raises(SystemExit):
        main([WRONG, "--faults", "1"])
    assert "name it with --seed" in capsys.readouterr().err
