"""`pybroker eos-check` as a command: what it refuses, and what it leaves."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.demo.topics import until
from pybroker.eos_check.class_archive import ClassArchive
from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.exploration import Exploration
from pybroker.eos_check.faults import Fault, Passing, Phase, Step, Victim
from pybroker.eos_check.judgement import Promise
from pybroker.eos_check.main import main
from pybroker.eos_check.pipeline import Pipeline, tail
from pybroker.eos_check.room import check_room
from pybroker.eos_check.run import _Run
from pybroker.eos_check.run_result import CannotRun, Clean, RunResult
from pybroker.eos_check.settings import Places, Settings
from pybroker.eos_check.topics import Output
from pybroker.testing.broker_process import BrokerProcess

LIMIT_S = 120.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WAITS = """
public class Waits {
    public static void main(String[] arguments) throws Exception {
        System.out.println("ready");
        Thread.sleep(1_000_000);
    }
}
"""
EOS_CHECK = [sys.executable, "-m", "pybroker", "eos-check"]


def test_a_check_without_a_command_says_what_to_do(capsys):
    assert main(["--messages", "3"]) == 2
    assert "name the pipeline's command after --" in capsys.readouterr().err


def test_a_command_without_the_dashes_is_told_where_they_belong(capsys):
    assert main(["--quick", "python", "a b.py", "{input}"]) == 2
    said = capsys.readouterr().err
    assert (
        said == "pybroker: write -- before the pipeline's command: -- python 'a b.py' '{input}'\n"
    )


@pytest.mark.parametrize(
    "option",
    [
        ["--messages", "0"],
        ["--judge", "/no/judge"],
        ["--judge", 'a "'],
        ["--judge", " "],
        ["--identity", "("],
        ["--time-limit", "nan"],
        ["--jobs", "-1"],
    ],
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
    words = settings.words(settings.command, Places("pulsar://x", "http://y", "", "/tmp/z"))
    assert words == ["run", "pulsar://x", "eos-input", "two", "/tmp/z/x", '{"a": 1}', "{}"]


def test_each_input_has_an_id_a_key_and_a_number():
    settings = Settings((), messages=4, keys=3, payload="{n} {id} {key} {other}")
    last = settings.inputs()[-1]
    assert (last.id, last.key, last.value) == ("eos-000004", "key-1", b"4 eos-000004 key-1 {other}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--", ""], "name the pipeline's command after --"),
        (["--input", "a", "--output", "a", "--", "true"], "must be another topic"),
        (["--output", "a", "--output", "public/default/a", "--", "true"], "must be another topic"),
        (["--output", "a b//c/d/e", "--", "true"], "Topic 'a b//c/d/e'"),
        (["--output", "non-persistent://public/default/a", "--", "true"], "stores nothing"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_any_run(words, says, capsys):
    assert main(words) == 2
    assert says in capsys.readouterr().err


@pytest.fixture(autouse=True)
def signals_as_before():
    handlers = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_daemon_that_left_the_pipeline_s_session_is_killed_with_it(tmp_path):
    pids = tmp_path / "pids"
    script = f"setsid sh -c 'echo $$ >> {pids}; sleep 1000; true' & echo $! >> {pids}; wait"
    environment = {"EOS_DIRECTORY": str(tmp_path)}
    pipeline = Pipeline(["sh", "-c", script], environment, "EOS_DIRECTORY", tmp_path / "log")
    pipeline.start()
    try:
        assert until(lambda: pids.exists() and len(pids.read_text().split()) == 2, LIMIT_S)
    finally:
        pipeline.kill()
    ended = [int(pid) for pid in pids.read_text().split()]
    assert until(lambda: not any(map(is_alive, ended)), LIMIT_S)


def test_a_jvm_compiles_less_unless_the_user_has_options_for_it(tmp_path, monkeypatch):
    def said() -> str:
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        pipeline = Pipeline(["sh", "-c", "echo $JAVA_TOOL_OPTIONS"], {"MARK": "m"}, "MARK", log)
        pipeline.start()
        assert until(lambda: pipeline.exit_code() is not None, LIMIT_S)
        return pipeline.log_tail()

    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    assert said() == "-XX:TieredStopAtLevel=1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g")
    assert said() == "-Xmx1g"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "")
    assert said() == ""


def test_the_classes_of_a_jvm_are_archived_by_one_run_and_used_by_later_ones(tmp_path):
    archive = ClassArchive(str(tmp_path))
    assert archive.options(records=False) == "-XX:TieredStopAtLevel=1"
    recording, path = archive.options(records=True), tmp_path / "classes.jsa"
    assert recording.endswith(f" -XX:ArchiveClassesAtExit={path}")
    path.write_bytes(b"")
    using = archive.options(records=False)
    assert using == recording.replace("ArchiveClassesAtExit", "SharedArchiveFile")
    assert ClassArchive(f"{tmp_path}/a b").options(records=True) == "-XX:TieredStopAtLevel=1"


@pytest.mark.slow
@pytest.mark.java
def test_a_jvm_writes_its_archive_when_the_work_is_done(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    archive, log, program = ClassArchive(str(tmp_path)), tmp_path / "log", tmp_path / "Waits.java"
    program.write_text(WAITS)
    for records in (True, False):
        log.unlink(missing_ok=True)
        environment = {"MARK": str(tmp_path)}
        words = ["sh", "-c", f"java {program}; true"]
        pipeline = Pipeline(words, environment, "MARK", log, archive, records=records)
        pipeline.start()
        try:
            assert until(lambda log=log: "ready" in tail(log), LIMIT_S)
            assert "cds" not in pipeline.log_tail().replace("cds*=off", "")
        finally:
            pipeline.end(threading.Event())
        assert (tmp_path / "classes.jsa").stat().st_size > 1_000_000
    assert "SharedArchiveFile" in tail(log)


def test_a_jvm_that_does_not_end_leaves_no_archive(tmp_path, monkeypatch):
    monkeypatch.setattr("pybroker.eos_check.class_archive._jvms", lambda *_: [2**30])
    path = tmp_path / "classes.jsa"
    path.write_bytes(b"in part")
    stop = threading.Event()
    stop.set()
    ClassArchive(str(tmp_path)).written_by(b"MARK=m", 2**30, stop)
    assert not path.exists()


def test_a_crash_that_did_not_happen_is_not_counted_as_tried():
    show = say = lambda *_: None
    settings = Settings(("true",))
    exploration = Exploration(settings, time_limit_s=1, pairs_at_most=1, jobs=1, say=say, show=show)
    fault = Fault(Victim.PIPELINE, Passing(Step("SEND", "t"), Phase.AFTER), 7)
    assert not exploration._count((fault,), RunResult((fault,)))
    assert not exploration._count((fault, fault), RunResult((fault, fault), passings=[[], []]))
    explored = exploration.explored
    assert (explored.singles_tried, explored.pairs_tried, explored.missed) == (0, 0, 2)


def test_what_has_not_come_when_a_run_is_stuck_is_not_called_lost():
    show = say = lambda *_: None
    settings = Settings(("true",))
    exploration = Exploration(settings, time_limit_s=1, pairs_at_most=1, jobs=1, say=say, show=show)
    outputs = tuple(Output("out", "k", f"eos-00000{n}".encode()) for n in (1, 2))
    clean = Clean(outputs, frozenset({"s"}), True, 1.0)
    found = exploration._judged(RunResult((), outputs[:1], stuck="it hangs"), clean)
    assert [each.promise for each in found] == [Promise.STUCK]
    found = exploration._judged(RunResult((), outputs[:1]), clean)
    assert [each.promise for each in found] == [Promise.LOST]


def test_a_slow_pipeline_has_more_time_and_longer_pauses():
    """On a loaded machine Spark needs a minute to start."""
    events = [Event("INPUT", at_s=50.0), Event("SEND", at_s=57.0), Event("ACK", at_s=58.0)]
    clean = RunResult((), events=events, duration_s=70.0).clean()
    assert clean.pause_s == 7.0
    broker = BrokerProcess(Path("unused"))
    slow = _Run(Settings(()), (), clean, threading.Event(), broker)
    assert (slow._limit_s(), slow._settle_s()) == (700.0, 14.0)
    limited = _Run(Settings((), run_limit_s=80.0), (), clean, threading.Event(), broker)
    assert limited._limit_s() == 80.0


def checked(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*EOS_CHECK, *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.slow
def test_a_command_that_does_nothing_is_asked_for_its_placeholders():
    """A request to the broker's admin API does not go through an HTTP proxy of the environment."""
    ended = checked("--jobs", "1", "--", "true", http_proxy="http://127.0.0.1:9", no_proxy="")
    assert ended.returncode == 2
    assert "ended with code 0, nothing came out on eos-output, and eos-input has" in ended.stderr
    assert "Does the command use {service_url}" in ended.stderr


@pytest.mark.slow
def test_a_broker_that_does_not_start_says_why(tmp_path):
    (tmp_path / "broker.conf").write_text("testMode=true\nnoSuchKey=1\n")
    ended = checked("--jobs", "1", "--config", str(tmp_path / "broker.conf"), "--", "true")
    assert ended.returncode == 2
    assert "before it was ready" in ended.stderr
    assert "unknown key 'noSuchKey'" in ended.stderr


@pytest.mark.slow
def test_a_broker_that_asks_for_a_login_is_refused(tmp_path):
    (tmp_path / "broker.conf").write_text(
        "authenticationEnabled=true\n"
        "authenticationProviders="
        "org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey=data:;base64,{'c2VjcmV0' * 6}\n"
    )
    ended = checked("--jobs", "1", "--config", str(tmp_path / "broker.conf"), "--", "true")
    assert ended.returncode == 2
    assert "remove authentication from the file that --config names" in ended.stderr


def test_a_disk_without_room_is_no_counter_example(tmp_path, monkeypatch):
    """The broker would refuse messages, and the pipeline would seem stuck."""
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CannotRun, match="set TMPDIR to a folder on another disk"):
        check_room(tmp_path)


@pytest.mark.slow
def test_a_pipeline_that_never_subscribes_is_asked_for_its_placeholders():
    waiting = [sys.executable, "-c", "import time; time.sleep(600)"]
    ended = checked("--jobs", "1", "--run-limit", "3", "--", *waiting)
    assert ended.returncode == 2
    assert "eos-input has no subscription. Does the command use {service_url}" in ended.stderr


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


def heeding_signals() -> None:
    """Processes that a shell or nohup starts in the background ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGINT] * 3, [signal.SIGHUP]])
def test_ctrl_c_ends_all_processes_and_leaves_no_files(tmp_path: Path, numbers):
    with a_check(tmp_path) as (process, started):
        for number in numbers:
            process.send_signal(number)
            until(lambda: process.poll() is not None, 0.3)  # an impatient user
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, said
        assert "all processes were stopped" in said
        assert until(lambda: not any(map(is_alive, started)), LIMIT_S)
        assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_what_a_check_started_ends_with_it_though_it_was_killed(tmp_path: Path):
    with a_check(tmp_path) as (process, started):
        process.kill()
        process.communicate(timeout=LIMIT_S)
        assert until(lambda: not any(map(is_alive, started)), LIMIT_S)
        assert until(lambda: list((tmp_path / "tmp").iterdir()) == [], LIMIT_S)


@contextlib.contextmanager
def a_check(folder: Path) -> "Iterator[tuple[subprocess.Popen[str], list[int]]]":
    """A check whose pipeline has started a daemon; and the pids of broker, pipeline and daemon.

    Its temporary files are in the folder's `tmp`.
    """
    pids = folder / "pids"
    (folder / "tmp").mkdir()
    script = f"echo $$ >> {pids}; setsid sleep 1000 & echo $! >> {pids}; wait"
    process = subprocess.Popen(
        [*EOS_CHECK, "--jobs", "1", "--", "sh", "-c", script],
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeding_signals,
    )
    try:
        assert until(lambda: pids.exists() and len(pids.read_text().split()) == 2, LIMIT_S)
        started = {*map(int, pids.read_text().split()), *children_of(process.pid)}
        assert len(started) >= 4  # includes the broker, and the process that ends them all
        yield process, list(started)
    finally:
        process.kill()


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    return [int(child) for child in listed.stdout.split()]


def is_alive(pid: int) -> bool:
    """False for zombies, which have ended and were not waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
