"""The doctor finds what prevents a broker's start, says what to do, and exits with 1."""

import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pybroker.base.configuration.config import BrokerConfig
from pybroker.doctor import disk, machine, software
from pybroker.doctor.finding import Level
from pybroker.doctor.main import examine
from pybroker.doctor.running import Holder, holder_of
from pybroker.process.cli import main


@pytest.fixture
def taken() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def free_ports() -> list[str]:
    return ["--port", "0", "--http-port", "0"]


def test_each_check_says_what_it_found(tmp_path: Path) -> None:
    found = list(examine(BrokerConfig(broker_service_port=0, web_service_port=0), tmp_path))
    names = [each.check for each in found]
    assert len(set(names)) == len(names)
    assert {"Python", "protobuf", "fdatasync", "free space", "clock", "memory"} <= set(names)
    assert all(each.found for each in found)
    assert all(each.advice for each in found if each.level is not Level.OK)


def test_the_report_is_json_on_request(
    tmp_path: Path, free_ports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["doctor", "--json", "--data-dir", str(tmp_path), *free_ports])
    said = json.loads(capsys.readouterr().out)
    errors = [each for each in said["checks"] if each["level"] == "error"]
    assert said["errors"] == len(errors)
    assert code == (1 if errors else 0)


def test_a_port_in_use_stops_the_broker(
    taken: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--data-dir", str(tmp_path), "--port", str(taken), "--http-port", "0"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert f"port {taken}" in said
    assert "set brokerServicePort to another port" in said
    assert "would not start, or not be safe, here" in said


def test_a_configuration_that_is_refused_is_an_error(
    tmp_path: Path, free_ports: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("maxMesageSize=5\n")
    words = ["doctor", "--config", str(conf), "--data-dir", str(tmp_path), *free_ports]
    assert main(words) == 1
    assert "did you mean maxMessageSize?" in capsys.readouterr().out


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def test_the_broker_that_runs_on_the_data_directory_is_recognised(
    tmp_path: Path, taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--data-dir", str(tmp_path), "--port", str(taken), "--http-port", "0"]
    with locked(tmp_path):  # this process is the broker
        assert main(words) == 0
    said = capsys.readouterr().out
    assert f"a broker runs on {tmp_path}" in said
    assert f"port {taken}" in said and "that broker listens on 127.0.0.1" in said
    assert "A broker runs here" in said
    assert main(words) == 1  # without a broker on the directory, the port is another program's


def test_a_port_of_another_program_is_an_error_beside_a_running_broker(taken: int) -> None:
    config = BrokerConfig(broker_service_port=taken, web_service_port=None)
    (found,) = machine.check_ports(config, Holder(7, frozenset({taken + 1})))
    assert found.level is Level.ERROR
    (found,) = machine.check_ports(config, Holder())
    assert found.level is Level.OK, "whose port it is cannot be known here"


HOLDS = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
input()
"""


def test_a_data_directory_in_use_by_a_process_without_ports_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as checking:  # type: ignore[call-overload]
        checking.stdout.readline()
        found = disk.check_data_directory(tmp_path, holder_of(tmp_path))
        checking.communicate(b"\n")
    assert found.level is Level.ERROR
    assert f"in use by process {checking.pid}" in found.found
    assert holder_of(tmp_path) is None
    assert disk.check_data_directory(tmp_path).level is Level.OK


def test_a_data_directory_need_not_exist_yet(tmp_path: Path) -> None:
    missing = tmp_path / "one" / "two"
    assert disk.check_data_directory(missing).level is Level.OK
    assert disk.check_free_space(missing).found.endswith("GiB free")
    assert not missing.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert disk.check_data_directory(tmp_path / "file").level is Level.ERROR


@pytest.mark.parametrize(
    ("seconds", "level"), [(0.001, Level.OK), (0.020, Level.WARNING), (0.000_001, Level.WARNING)]
)
def test_a_slow_disk_and_one_in_memory_are_warnings(
    seconds: float, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_sync_times", lambda place: [seconds] * 3)
    assert disk.check_sync(tmp_path).level is level


def test_a_clock_behind_the_data_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    file.touch()
    in_an_hour = file.stat().st_mtime + 3600
    os.utime(file, (in_an_hour, in_an_hour))
    assert machine.check_clock(tmp_path).level is Level.ERROR


@pytest.mark.parametrize(
    ("hard", "level"),
    [(64, Level.ERROR), (1024, Level.WARNING), (resource.RLIM_INFINITY, Level.OK)],
)
def test_few_file_descriptors_are_a_warning_and_hardly_any_an_error(
    hard: int, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (hard, hard))
    assert machine.check_descriptors(BrokerConfig()).level is level


@pytest.mark.parametrize(
    ("mebibytes", "level"), [(64, Level.ERROR), (256, Level.WARNING), (4096, Level.OK)]
)
def test_little_memory_is_a_warning_and_hardly_any_an_error(
    mebibytes: int, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_available_bytes", lambda: mebibytes * 1024**2)
    assert machine.check_memory().level is level


def test_versions_are_compared_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.metadata, "version", lambda name: "10.2.post1")
    assert software._trouble("one>=9.1,<11") == ""
    assert software._trouble("one==10.2") == ""
    assert "<10.2 is needed" in software._trouble("one>=9,<10.2")


def test_authentication_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "pyjwt":
            raise software.metadata.PackageNotFoundError(name)
        return "99"

    monkeypatch.setattr(software.metadata, "version", version)
    monkeypatch.setattr(
        software.metadata, "requires", lambda name: ["pyjwt>=2.8 ; extra == 'security'"]
    )
    (without,) = software.check_packages(BrokerConfig())
    (needed,) = software.check_packages(BrokerConfig(authentication_enabled=True))
    assert (without.level, needed.level) == (Level.ABSENT, Level.ERROR)
    assert "pip install 'pybroker[security]'" in needed.advice


def test_another_project_of_the_same_import_name_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert software.check_rival() == []
    monkeypatch.setattr(software.metadata, "version", lambda name: "1.0")
    (found,) = software.check_rival()
    assert found.level is Level.ERROR
    assert "pip uninstall lib-pybroker" in found.advice


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ('openjdk version "17.0.2"', Level.OK),
        ('java version "1.8.0_292"', Level.WARNING),
        ("nothing", Level.WARNING),
    ],
)
def test_java_is_looked_at_for_spark(
    said: str, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert software.check_java().level is level


def test_a_machine_without_java_runs_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert software.check_java().level is Level.ABSENT
