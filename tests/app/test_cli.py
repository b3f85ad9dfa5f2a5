"""Starting and stopping `pybroker standalone`: a process with an exit code."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

import pybroker
from pybroker.base.version import version
from pybroker.process.cli import main
from pybroker.process.serving import GARBAGE_THRESHOLDS

pytestmark = pytest.mark.slow  # starts processes

READY = re.compile(r"pybroker ready pulsar://localhost:(\d+) (http://localhost:\d+)\n")


class Standalone:
    """A `pybroker standalone` on `data_dir`; every line of output is checked."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "pybroker", "standalone", "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ready(self) -> tuple[int, str]:
        """The binary port and the admin URL."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.fullmatch(line)
        assert found, (line, self.process.communicate())
        return int(found[1]), found[2]

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(60)


@pytest.fixture
def started() -> Iterator[list[Standalone]]:
    """Processes in this list are killed after the test."""
    processes: list[Standalone] = []
    yield processes
    for standalone in processes:
        standalone.process.kill()
        standalone.process.communicate()


FREE_PORTS = ("--port", "0", "--http-port", "0")


def start(started: list[Standalone], data_dir: Path, *arguments: str) -> Standalone:
    started.append(Standalone(data_dir, *(arguments or FREE_PORTS)))
    return started[-1]


def refusal(data_dir: Path, *arguments: str) -> str:
    """The only line on stderr of a broker that fails to start."""
    command = [sys.executable, "-m", "pybroker", "standalone", "--data-dir", str(data_dir)]
    ended = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def listening_port() -> tuple[socket.socket, int]:
    taken = socket.create_server(("127.0.0.1", 0))
    return taken, taken.getsockname()[1]


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def create_topic(admin_url: str, name: str) -> None:
    assert httpx.put(f"{admin_url}/admin/v2/persistent/public/default/{name}").status_code == 204


def topics(admin_url: str) -> list[str]:
    names: list[str] = httpx.get(f"{admin_url}/admin/v2/persistent/public/default").json()
    return names


def test_the_ready_line_names_ports_that_serve(tmp_path: Path, started: list[Standalone]) -> None:
    broker = start(started, tmp_path / "data")
    port, admin_url = broker.ready()
    socket.create_connection(("127.0.0.1", port)).close()
    assert httpx.get(f"{admin_url}/admin/v2/brokers/health").text == "ok"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_ready_line_is_one_write(tmp_path: Path, unbuffered: str) -> None:
    """Whoever waits for it may read what is there and look for the whole line."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # a write is a datagram
    ours.settimeout(60)
    command = [sys.executable, "-m", "pybroker", "standalone", "--data-dir", str(tmp_path / "data")]
    with ours, theirs:
        broker = subprocess.Popen(
            [*command, *FREE_PORTS],
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
        try:
            assert READY.fullmatch(ours.recv(4096).decode())
        finally:
            broker.kill()
            broker.wait()


def test_without_http_the_ready_line_names_one_address(
    tmp_path: Path, started: list[Standalone]
) -> None:
    broker = start(started, tmp_path / "data", "--port", "0", "--no-http")
    assert broker.process.stdout is not None
    assert re.fullmatch(
        r"pybroker ready pulsar://localhost:\d+\n", broker.process.stdout.readline()
    )


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0_and_the_data_is_back(
    tmp_path: Path, started: list[Standalone], how: signal.Signals
) -> None:
    broker = start(started, tmp_path / "data")
    create_topic(broker.ready()[1], "kept")
    assert broker.end(how) == 0
    assert broker.process.stdout is not None
    assert broker.process.stderr is not None
    assert broker.process.stdout.read() == ""
    said = broker.process.stderr.read()
    assert said.endswith("INFO pybroker: stopped; all data is on disk\n")
    assert f"stopping: {how.name}" in said
    again = start(started, tmp_path / "data")
    assert topics(again.ready()[1]) == ["persistent://public/default/kept"]


def test_the_admin_api_ends_the_process_in_order(tmp_path: Path, started: list[Standalone]) -> None:
    broker = start(started, tmp_path / "data")
    _, admin_url = broker.ready()
    assert httpx.post(f"{admin_url}/admin/v2/brokers/shutdown").status_code == 204
    assert broker.process.wait(60) == 0


def test_what_was_answered_is_back_after_a_kill(tmp_path: Path, started: list[Standalone]) -> None:
    broker = start(started, tmp_path / "data")
    create_topic(broker.ready()[1], "kept")
    broker.end(signal.SIGKILL)
    again = start(started, tmp_path / "data")
    assert topics(again.ready()[1]) == ["persistent://public/default/kept"]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return False  # reset: the listener closed while this connection was in its backlog
    return True


def test_a_second_signal_does_not_wait_for_the_drain(
    tmp_path: Path, started: list[Standalone]
) -> None:
    broker = start(started, tmp_path / "data")
    port, admin_url = broker.ready()
    address = ("127.0.0.1", int(admin_url.rpartition(":")[2]))
    with socket.create_connection(address) as unfinished:
        head = "PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        unfinished.sendall(head.encode())
        assert httpx.get(f"{admin_url}/admin/v2/brokers/health").text == "ok"
        broker.process.terminate()
        while accepts(port):
            pass
        assert broker.end() == 130


FAILING_DISK = """
import errno, os, sys
from pathlib import Path
from pybroker.process.cli import main

fdatasync, trigger = os.fdatasync, Path(sys.argv.pop())

def failing(descriptor):
    if trigger.exists():
        raise OSError(errno.EIO, "Input/output error")
    fdatasync(descriptor)

os.fdatasync = failing
sys.exit(main(sys.argv[1:]))
"""


def test_a_failed_fsync_ends_the_process_before_anything_is_acknowledged(tmp_path: Path) -> None:
    trigger = tmp_path / "the-disk-fails"
    command = [sys.executable, "-c", FAILING_DISK, "standalone", *FREE_PORTS]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data"), str(trigger)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = READY.fullmatch(process.stdout.readline())
        assert ready is not None
        trigger.touch()
        with pytest.raises(httpx.TransportError):
            create_topic(ready[2], "lost")
        _, said = process.communicate(timeout=60)
    assert process.returncode == 70
    assert "\npybroker: stopped, because the disk failed to store" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_taken_port_is_named_and_the_data_directory_untouched(
    tmp_path: Path, option: str
) -> None:
    taken, port = listening_port()
    other = "--http-port" if option == "--port" else "--port"
    with taken:
        line = refusal(tmp_path / "data", option, str(port), other, "0")
    assert f"127.0.0.1:{port}" in line
    assert option in line
    assert not (tmp_path / "data").exists()


def test_a_data_directory_in_use_is_named_and_left_alone(
    tmp_path: Path, started: list[Standalone]
) -> None:
    broker = start(started, tmp_path / "data")
    admin_url = broker.ready()[1]
    line = refusal(tmp_path / "data", *FREE_PORTS)
    assert str(tmp_path / "data") in line
    create_topic(admin_url, "still-serving")


def test_a_data_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    assert str(tmp_path / "data") in refusal(tmp_path / "data", *FREE_PORTS)


def test_an_unknown_key_is_named_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("# mine\nmaxMessageSizes=5\n")
    line = refusal(tmp_path / "data", "--config", str(config))
    assert f"{config}, line 2" in line
    assert "did you mean maxMessageSize?" in line
    assert not (tmp_path / "data").exists()


def test_a_corrupt_journal_is_named_and_left_alone(
    tmp_path: Path, started: list[Standalone]
) -> None:
    data = tmp_path / "data"
    broker = start(started, data)
    admin_url = broker.ready()[1]
    for number in range(20):
        create_topic(admin_url, f"topic-{number}")
    broker.end(signal.SIGKILL)
    journal = sorted((data / "journal").iterdir())[-1]
    corrupt(journal)
    before = files_below(data)
    line = refusal(data, *FREE_PORTS)
    assert journal.name in line
    assert files_below(data) == before


def corrupt(journal: Path) -> None:
    """Flips a bit in the first half of the written part, far from a torn tail."""
    content = bytearray(journal.read_bytes())
    written = len(bytes(content).rstrip(b"\0"))
    content[written // 4] ^= 0x10
    journal.write_bytes(content)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_an_open_address_needs_insecure(tmp_path: Path, host: str) -> None:
    line = refusal(tmp_path / "data", "--bind", host, *FREE_PORTS)
    assert "--insecure" in line
    assert not (tmp_path / "data").exists()


def test_insecure_listens_everywhere_and_is_found_where_it_was_asked(
    tmp_path: Path, started: list[Standalone]
) -> None:
    broker = start(started, tmp_path / "data", "--bind", "0.0.0.0", "--insecure", *FREE_PORTS)
    assert broker.process.stdout is not None
    ready = re.fullmatch(
        r"pybroker ready pulsar://0\.0\.0\.0:(\d+) http://0\.0\.0\.0:(\d+)\n",
        broker.process.stdout.readline(),
    )
    assert ready is not None
    lookup = "lookup/v2/topic/persistent/public/default/t"
    found = httpx.get(f"http://127.0.0.1:{ready[2]}/{lookup}").json()
    assert found["brokerUrl"] == f"pulsar://127.0.0.1:{ready[1]}"


def test_the_command_line_overrides_the_file(tmp_path: Path, started: list[Standalone]) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerServicePort=1\nwebServicePort=1\nclusterName=east\n")
    broker = start(started, tmp_path / "data", "--config", str(config), *FREE_PORTS)
    assert httpx.get(f"{broker.ready()[1]}/admin/v2/clusters").json() == ["east"]


@pytest.mark.parametrize("arguments", [("standalone", "--port", "70000"), ("fly",)])
def test_an_impossible_command_line_exits_with_2(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert re.fullmatch(r"pybroker \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_an_option_too(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"pybroker {version()}\n"


@pytest.mark.parametrize("port", ["abc", "65536", "-1", "1.5", "9" * 5000])
def test_a_port_that_is_none_is_named(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["standalone", f"--port={port}"])
    said = capsys.readouterr().err
    assert "is not a port (0 to 65535)" in said


def test_help_and_refusals_name_no_file_that_is_not_installed() -> None:
    """The wheel does not contain the documents."""
    package = Path(pybroker.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py")]
    named = [
        text for source in sources for text in re.findall(r"\((?:docs|docker)/[^)]*\)", source)
    ]
    assert named == []


def test_looking_for_garbage_delays_no_other_work() -> None:
    """Limits the objects that one collection of the young generations may traverse."""
    first, second, _ = GARBAGE_THRESHOLDS
    assert first * (second + 1) <= 6_000


WATCHED_RECOVERY = """
import gc, sys
from pybroker.process import app, cli
from pybroker.process.ports import StartFailed

async def standalone(*_):
    print(gc.get_threshold())
    raise StartFailed("enough was seen")

app.standalone = standalone
sys.exit(cli.main(sys.argv[1:]))
"""


def test_garbage_is_collected_seldom_already_while_the_data_directory_is_recovered(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", WATCHED_RECOVERY, "standalone", "--data-dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert "enough was seen" in ended.stderr
    assert ended.stdout == f"{GARBAGE_THRESHOLDS}\n"


def test_ctrl_c_while_a_command_is_imported_shows_no_traceback(capsys, monkeypatch):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("pybroker.checking.main.main", interrupted)
    assert main(["check", "somewhere"]) == 130
    assert capsys.readouterr().err == "pybroker: interrupted\n"
