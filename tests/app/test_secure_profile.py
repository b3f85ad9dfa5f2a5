"""compose.yaml's profile `secure`, the systemd unit, and the lines of docs/running.md.

Their commands are run without docker and systemd, in a folder instead of a container.
"""

import configparser
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typed_commands import environment_with_pybroker

from pybroker.commands.admin.main import GROUPS
from pybroker.process.cli import _parser
from pybroker.process.configuration import configuration

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = (DOCKER / "compose.yaml").read_text()
RUNNING = (ROOT / "docs/running.md").read_text()
IN_IMAGE = "/opt/pybroker/docker"


def service(name: str) -> str:
    """The service's lines in compose.yaml."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert found is not None, name
    return found[1]


def words(name: str, key: str = "command") -> list[str]:
    found = re.search(rf"{key}:\s*(\[.*?\])", service(name), re.DOTALL)
    assert found is not None, name
    listed: list[str] = json.loads(found[1])
    return listed


class Secure:
    """Folders in place of the containers' volumes: /secrets, the broker's part of it, and /data."""

    def __init__(self, folder: Path) -> None:
        self.environment = environment_with_pybroker(folder / "tools")
        self.secrets = folder / "secrets"
        self.brokers = folder / "broker-secrets"
        self.conf = folder / "broker.conf"
        text = (DOCKER / "secure" / "broker.conf").read_text()
        for port in ("6651", "8443"):
            text = text.replace(f"={port}\n", "=0\n")
        self.conf.write_text(text.replace("/secrets", str(self.brokers)))
        self.places = {
            "/secrets": str(self.secrets),
            "/broker-secrets": str(self.brokers),
            "/data": str(folder / "data"),
            "/secrets/admin.conf": str(self.secrets / "admin.conf"),
            "/secrets/ca.crt": str(self.brokers / "ca.crt"),
            "file:///secrets/health.token": f"file://{self.brokers}/health.token",
            f"{IN_IMAGE}/secure/broker.conf": str(self.conf),
            f"{IN_IMAGE}/secure/keys.sh": str(DOCKER / "secure" / "keys.sh"),
            "0.0.0.0": "127.0.0.1",
        }

    def here(self, listed: list[str]) -> list[str]:
        return [self.places.get(word, word) for word in listed]

    def run(self, listed: list[str], code: int = 0) -> str:
        ended = subprocess.run(
            self.here(listed), env=self.environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == code, f"{listed}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Secure:
    made = Secure(tmp_path_factory.mktemp("secure"))
    made.run([*words("secure-keys", "entrypoint"), *words("secure-keys")])
    return made


@pytest.fixture(scope="module")
def urls(secure: Secure) -> Iterator[list[str]]:
    """URLs of the broker that the profile starts."""
    with subprocess.Popen(
        ["pybroker", *secure.here(words("secure-broker"))],
        env=secure.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        yield running.stdout.readline().split()[2:]
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0


def client(secure: Secure, role: str, urls: list[str]) -> list[str]:
    """Options that follow a command."""
    return ["--client-conf", str(secure.secrets / f"{role}.conf"), "--url", urls[0]]


@pytest.mark.slow
def test_the_profile_serves_clients_with_a_token_over_tls(secure: Secure, urls: list[str]) -> None:
    assert [url.partition("://")[0] for url in urls] == ["pulsar+ssl", "https"]
    refused = ["pybroker", "produce", "t", "-m", "a", "--timeout", "3"]
    secure.run([*refused, *client(secure, "app", urls)], code=1)
    grant = words("secure-grants")
    grant[grant.index("--admin-url") + 1] = urls[1]
    secure.run(["pybroker", *grant])
    secure.run(["pybroker", "produce", "t", "-m", "hello", *client(secure, "app", urls)])
    said = secure.run(
        ["pybroker", "consume", "t", "-s", "s", "-p", "Earliest", *client(secure, "app", urls)]
    )
    assert "content:hello" in said
    nobody = ["--url", urls[0], "--tlsTrustCertsFilePath", str(secure.secrets / "ca.crt")]
    secure.run([*refused, *nobody], code=1)


@pytest.mark.slow
def test_its_health_check_uses_a_role_that_may_do_nothing_else(
    secure: Secure, urls: list[str]
) -> None:
    kind, *asked = words("secure-broker", "test")
    assert kind == "CMD"
    asked[asked.index("--admin-url") + 1] = urls[1]
    assert "ok" in secure.run(asked)
    secure.run([*asked[:-2], "tenants", "list"], code=1)


@pytest.mark.slow
def test_the_broker_sees_nothing_that_signs(secure: Secure) -> None:
    seen = {path.name for path in secure.brokers.iterdir()}
    assert seen == {"ca.crt", "broker.crt", "broker.key", "public.key", "health.token"}
    assert {"ca.key", "private.key", "admin.token"} <= {p.name for p in secure.secrets.iterdir()}
    assert (secure.brokers / "broker.key").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_keys_that_are_there_stay(secure: Secure) -> None:
    places = [*secure.secrets.iterdir(), *secure.brokers.iterdir()]
    all_before = {path: path.read_bytes() for path in places}
    before = {path.name for path in secure.secrets.iterdir()}
    secure.run([*words("secure-keys", "entrypoint"), *words("secure-keys")])
    places = [*secure.secrets.iterdir(), *secure.brokers.iterdir()]
    assert {path: path.read_bytes() for path in places} == all_before
    assert {"ca.crt", "broker.crt", "private.key", "app.token", "admin.conf"} <= before
    for name in ("broker.key", "private.key", "app.token", "admin.token"):
        assert (secure.secrets / name).stat().st_mode & 0o077 == 0


def test_files_that_the_profile_names_are_in_the_image() -> None:
    assert "COPY docker docker" in (DOCKER / "Dockerfile").read_text()
    for path in re.findall(rf"{IN_IMAGE}/([\w./]+)", COMPOSE):
        assert (DOCKER / path).is_file(), path


def test_every_service_of_the_profile_waits_for_the_one_before() -> None:
    assert "secure-keys: {condition: service_completed_successfully}" in service("secure-broker")
    assert "secure-broker: {condition: service_healthy}" in service("secure-grants")
    profiles = re.findall(
        r"^  (secure-\w+):(?:\n    .*)*?\n    profiles: \[secure\]", COMPOSE, re.M
    )
    assert profiles == ["secure-keys", "secure-broker", "secure-grants"]


# -- the unit, and what docs/running.md says


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DOCKER / "pybroker.service")
    return parser["Service"]


@pytest.mark.slow
def test_what_the_unit_starts_serves_and_ends_in_order(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerServicePort=0\nwebServicePort=0\n")
    places = {
        "/etc/pybroker/broker.conf": str(tmp_path / "broker.conf"),
        "/var/lib/pybroker": str(tmp_path / "data"),
    }
    program, *arguments = shlex.split(unit()["ExecStart"])
    assert program == "/opt/pybroker/bin/pybroker"
    with subprocess.Popen(
        [sys.executable, "-m", "pybroker", *(places.get(word, word) for word in arguments)],
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("pybroker ready ")
        running.send_signal(signal.SIGTERM)
        assert running.wait(float(unit()["TimeoutStopSec"])) == 0


def test_the_unit_may_write_where_its_data_is_and_does_not_restart_on_a_bad_disk() -> None:
    from pybroker.process.serving import EXIT_DISK_FAILED

    assert f"/var/lib/{unit()['StateDirectory']}" in unit()["ExecStart"]
    assert int(unit()["RestartPreventExitStatus"]) == EXIT_DISK_FAILED


def lines_of_running() -> list[str]:
    blocks = re.findall(r"```\n(.*?)```", RUNNING, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line]


@pytest.mark.slow
def test_docker_run_lines_end_in_what_the_broker_understands(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for line in lines_of_running() if line.startswith("docker run")]
    lines = [line for line in lines if "--entrypoint" not in line]
    assert len(lines) == 2
    default = json.loads(
        re.findall(r"CMD (\[\"standalone\".*?\])", (DOCKER / "Dockerfile").read_text())[0]
    )
    for line in lines:
        listed = shlex.split(line)
        arguments = listed[listed.index("pybroker") + 1 :] or default
        config = configuration(_parser().parse_args(secure.here(arguments)))
        assert config.bind_address in ("0.0.0.0", "127.0.0.1")


def test_services_and_files_that_the_page_names_are_there() -> None:
    for line in lines_of_running():
        for name in re.findall(r"secure-\w+", line):
            assert service(name)
        for path in re.findall(r"\bdocker/[\w./-]+", line):
            assert (ROOT / path).exists(), line
    assert "certificates" in RUNNING
    assert "grant-permission" in {command.name for command in GROUPS["namespaces"]}
    assert shutil.which("sh")


def test_only_the_service_that_makes_the_keys_may_write_them() -> None:
    mounts = {
        name: re.findall(r"[\w-]*secrets:/[\w-]+[:\w]*", service(name))
        for name in ("secure-keys", "secure-broker", "secure-grants")
    }
    assert mounts == {
        "secure-keys": ["secrets:/secrets", "broker-secrets:/broker-secrets"],
        "secure-broker": ["broker-secrets:/secrets:ro"],
        "secure-grants": ["secrets:/secrets:ro"],
    }
