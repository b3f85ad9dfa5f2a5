"""`pybroker eos-check` as a command: what it refuses, and what it leaves behind."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from pybroker.demo.topics import until
from pybroker.eos_check.main import main
from pybroker.eos_check.settings import Settings

LIMIT_S = 120.0
EOS_CHECK = [sys.executable, "-m", "pybroker", "eos-check"]


def test_a_check_without_a_command_says_what_to_do(capsys):
    assert main(["--messages", "3"]) == 2
    assert "name the pipeline's command behind --" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [["--messages", "0"], ["--identity", "("], ["--time-limit", "nan"], ["--jobs", "-1"]],
    ids=" ".join,
)
def test_an_impossible_option_is_refused(option, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*option, "--", "true"])
    assert ended.value.code == 2
    assert option[0] in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_before_any_run(tmp_path, capsys):
    file = tmp_path / "nowhere/report.html"
    assert main(["--report", str(file), "--", "true"]) == 2
    assert f"No such file or directory: '{file}'" in capsys.readouterr().err


def test_placeholders_are_filled_and_other_braces_stay():
    command = ("run", "{service_url}", "{input}", "{output2}", "{directory}/x", '{"a": 1}', "{}")
    settings = Settings(command, outputs=("one", "two"))
    words = settings.words("pulsar://x", "http://y", "/tmp/z")
    assert words == ["run", "pulsar://x", "eos-input", "two", "/tmp/z/x", '{"a": 1}', "{}"]


def test_each_input_has_an_id_a_key_and_a_number():
    settings = Settings((), messages=4, keys=3, payload="{n} {id} {key} {other}")
    last = settings.inputs()[-1]
    assert (last.id, last.key, last.value) == ("eos-000004", "key-1", b"4 eos-000004 key-1 {other}")


def checked(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*EOS_CHECK, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.slow
def test_a_pipeline_that_never_subscribes_is_asked_for_its_placeholders():
    waiting = [sys.executable, "-c", "import time; time.sleep(600)"]
    ended = checked("--jobs", "1", "--run-limit", "3", "--", *waiting)
    assert ended.returncode == 2
    assert "eos-input has no subscription: does the command use {service_url}" in ended.stderr


@pytest.mark.slow
def test_a_pipeline_that_fails_without_any_fault_cannot_be_judged():
    failing = [sys.executable, "-c", "raise SystemExit('no configuration')"]
    ended = checked("--jobs", "1", "--", *failing)
    assert ended.returncode == 2
    assert "ended with code 1 before any fault" in ended.stderr
    assert "no configuration" in ended.stderr


@pytest.mark.slow
def test_a_command_that_is_not_there_is_named():
    ended = checked("--jobs", "1", "--", "no-such-command")
    assert ended.returncode == 2
    assert "no-such-command cannot be started" in ended.stderr


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_leaves_no_files(tmp_path: Path):
    temporary, pids = tmp_path / "tmp", tmp_path / "pids"
    temporary.mkdir()
    script = f"echo $$ >> {pids}; sleep 1000 & echo $! >> {pids}; wait"
    process = subprocess.Popen(
        [*EOS_CHECK, "--jobs", "1", "--", "sh", "-c", script],
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert until(lambda: pids.exists() and len(pids.read_text().split()) == 2, LIMIT_S)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "all processes are ended" in said
    ended = [int(pid) for pid in pids.read_text().split()]
    assert until(lambda: not any(map(is_alive, ended)), LIMIT_S)
    assert list(temporary.iterdir()) == []


def is_alive(pid: int) -> bool:
    """Not a zombie either: what nobody waits for yet has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
