"""The log of `pybroker standalone`: its levels and its format, also changed at run time."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow  # starts processes

_READY = re.compile(r"pybroker ready .*(http://localhost:\d+)\n")


class Logging:
    """A broker whose stderr is read, so that a test can wait for a line."""

    def __init__(self, data_dir: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-m", "pybroker", "standalone", "--data-dir", str(data_dir)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--http-port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        assert self.process.stdout is not None
        ready = _READY.fullmatch(self.process.stdout.readline())
        assert ready is not None, self.lines
        self.http = httpx.Client(base_url=f"{ready[1]}/admin/v2")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line)
                self._more.notify()

    def until(self, words: str) -> str:
        """The first line that contains `words`; fails after a while."""
        with self._more:
            found: Callable[[], str | None] = lambda: next(  # noqa: E731
                (line for line in self.lines if words in line), None
            )
            assert self._more.wait_for(found, 20), self.lines
            return found() or ""

    def stop(self) -> list[str]:
        self.process.terminate()
        assert self.process.wait(30) == 0
        self._reading.join(30)
        return self.lines

    def create_tenant(self, name: str) -> None:
        answer = self.http.put(f"/tenants/{name}", json={"allowedClusters": ["standalone"]})
        assert answer.status_code == 204, answer.text

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._reading.join(30)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        self.http.close()


Start = Callable[..., Logging]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Logging] = []

    def starting(*arguments: str) -> Logging:
        started.append(Logging(tmp_path / "data", arguments))
        return started[-1]

    yield starting
    for each in started:
        each.close()


def test_by_default_it_says_its_start_its_end_and_every_change(start: Start) -> None:
    broker = start()
    broker.create_tenant("acme")
    broker.until("INFO pybroker.audit: PUT who=- from=127.0.0.1:")
    lines = broker.stop()
    assert "INFO pybroker: version " in lines[0]
    assert lines[-1].endswith("INFO pybroker: stopped; all data is on disk\n")


def test_as_json_every_line_is_an_object(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("logFormat=json\nfunctionsWorkerEnabled=false\nlogLevel=info,access=info\n")
    broker = start("--config", str(config))
    broker.create_tenant("acme")
    broker.until("pybroker.access")
    lines = [json.loads(line) for line in broker.stop()]
    assert [line["level"] for line in lines if "functionsWorkerEnabled" in line["message"]] == [
        "warning"
    ], "what is said before the format is known is written in it, too"
    (audited,) = (line for line in lines if line["logger"] == "pybroker.audit")
    assert (audited["on"], audited["result"]) == ("/admin/v2/tenants/acme", 204)


def test_the_level_can_be_changed_while_it_runs(start: Start) -> None:
    broker = start("--log-level", "warning")
    broker.create_tenant("quiet")
    values = "/brokers/configuration"
    assert "logLevel" in broker.http.get(values).json()
    assert broker.http.post(f"{values}/logLevel/info").status_code == 204
    assert broker.http.get(f"{values}/values").json() == {"logLevel": "info"}
    broker.create_tenant("loud")
    broker.until("tenants/loud")
    assert broker.http.delete(f"{values}/logLevel").status_code == 204
    assert broker.http.get(f"{values}/values").json() == {}
    broker.create_tenant("quiet-again")
    said = "".join(broker.stop())
    assert "quiet" not in said
    assert "the log level changes from warning to info" in said


def test_who_silences_the_log_leaves_a_line(start: Start) -> None:
    broker = start()
    assert broker.http.post("/brokers/configuration/logLevel/off").status_code == 204
    broker.create_tenant("unseen")
    assert broker.stop()[-1].endswith("the log level changes from info to off\n")


def test_a_level_that_does_not_exist_is_refused_at_run_time_too(start: Start) -> None:
    broker = start()
    refused = broker.http.post("/brokers/configuration/logLevel/loud")
    assert refused.status_code == 412
    assert "levels are debug, info" in refused.json()["reason"]
    assert broker.http.get("/brokers/configuration/values").json() == {}


def test_a_hangup_reads_the_levels_of_the_file_again(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("logLevel=info\n")
    broker = start("--config", str(config))
    config.write_text("logLevel=warning\nmaxMessageSize=1000\nmaxProducersPerTopic=3\n")
    broker.process.send_signal(signal.SIGHUP)
    named = broker.until("take effect at the next start")
    assert ("maxMessageSize" in named, "maxProducersPerTopic" in named) == (True, False)
    limit = broker.http.get("/namespaces/public/default/maxProducersPerTopic?applied=true")
    assert limit.json() == 3, "what is dynamic holds at once"
    broker.create_tenant("quiet")
    assert "tenants/quiet" not in "".join(broker.stop())


@pytest.mark.parametrize(
    ("broken", "why"), [("logLevel=loud", "is not a level"), ("nonsense", "key=value"), (None, "")]
)
def test_a_hangup_with_a_broken_file_changes_nothing(
    start: Start, tmp_path: Path, broken: str | None, why: str
) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("logLevel=info\n")
    broker = start("--config", str(config))
    config.unlink() if broken is None else config.write_text(broken)
    broker.process.send_signal(signal.SIGHUP)
    assert why in broker.until("SIGHUP: the configuration is unchanged")
    said = broker.until("SIGHUP: reloaded")
    assert "reloaded nothing; not reloaded, for the reasons given above: log levels, dyn" in said
    broker.create_tenant("afterwards")
    broker.until("tenants/afterwards")
    broker.stop()


def test_a_hangup_says_what_was_reloaded_and_what_was_not(start: Start, tmp_path: Path) -> None:
    secret, config = tmp_path / "secret.key", tmp_path / "broker.conf"
    secret.write_bytes(b"k" * 40)
    config.write_text(
        f"authenticationEnabled=true\nauthenticationProviders=token\ntokenSecretKey=file://{secret}\n"
    )
    broker = start("--config", str(config))
    broker.process.send_signal(signal.SIGHUP)
    said = broker.until("INFO pybroker: SIGHUP")
    assert "SIGHUP: reloaded token keys, log levels, dynamic configuration" in said
    secret.unlink()
    broker.process.send_signal(signal.SIGHUP)
    said = broker.until("ERROR pybroker: SIGHUP")
    assert "reloaded log levels, dynamic configuration; not reloaded" in said
    assert "above: token keys; mend the files" in said
    broker.stop()


def test_hangups_without_end_do_not_end_it(start: Start) -> None:
    broker = start()
    for _ in range(50):
        broker.process.send_signal(signal.SIGHUP)
    broker.create_tenant("still-there")
    broker.stop()


@pytest.mark.parametrize("option", ["--log-level=loud", "--log-format=xml"])
def test_an_option_that_is_no_level_or_format_is_refused(option: str) -> None:
    command = [sys.executable, "-m", "pybroker", "standalone", option]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "text" in ended.stderr or "levels are debug" in ended.stderr


def test_a_pipe_that_nobody_reads_does_not_stop_the_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pybroker", "standalone", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--port", "0", "--http-port", "0", "--log-level", "access=info"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready = _READY.fullmatch(process.stdout.readline())
            assert ready is not None
            with httpx.Client(base_url=ready[1]) as http:
                for number in range(600):  # more than a pipe holds
                    assert http.get(f"/admin/v2/{'x' * 500}/{number}").status_code == 404
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_what_makes_no_sense_leaves_a_few_lines_however_much_of_it_comes(start: Start) -> None:
    broker = start()
    web = (broker.http.base_url.host, broker.http.base_url.port)
    for _ in range(200):
        with socket.create_connection(web, timeout=20) as peer:
            peer.sendall(b"\x16\x03\x01 \x00\r\n\r\n")
            assert peer.recv(4096).startswith(b"HTTP/1.1 400")
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = asked + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    with socket.create_connection(web, timeout=20) as peer:
        peer.sendall(upgrade * 200)
        seen = b""
        while seen.count(b"HTTP/1.1 200") < 200:
            seen += peer.recv(65_536)
    assert len(broker.stop()) < 100
