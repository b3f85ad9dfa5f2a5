"""docs/security.md: its ten lines, each run in a separate shell, in one directory."""

import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from certificates import Authority
from typed_commands import environment_with_pybroker

from pybroker.base.config import BrokerConfig
from pybroker.base.config_file import load_config
from pybroker.client import AuthenticationToken, Client
from pybroker.client.errors import PulsarException
from pybroker.security.keys import _INSTALL

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/security.md").read_text()
(BLOCK,) = re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL)
LINES = BLOCK.strip().splitlines()
TOPIC = "persistent://public/default/guided"


class Shell:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = environment_with_pybroker(directory / "bin")

    def run(self, line: str) -> str:
        ended = subprocess.run(
            ["sh", "-c", line],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell where lines 2 to 8 have run, with a certificate, and with free ports."""
    directory = tmp_path_factory.mktemp("guide")
    Authority(directory).issue("broker")
    made = Shell(directory)
    for line in LINES[1:8]:
        made.run(line)
    text = (directory / "broker.conf").read_text()
    (directory / "free.conf").write_text(text.replace("6651", "0").replace("8443", "0"))
    return made


@pytest.fixture(scope="module")
def urls(shell: Shell) -> Iterator[list[str]]:
    """URLs of the broker that line 9 starts."""
    line = LINES[8].replace("broker.conf", "free.conf").replace("0.0.0.0", "127.0.0.1")
    running = subprocess.Popen(
        ["sh", "-c", f"exec {line}"],
        cwd=shell.directory,
        env=shell.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    yield running.stdout.readline().split()[2:]
    running.send_signal(signal.SIGTERM)
    running.wait(60)
    running.stdout.close()


def client(urls: list[str], shell: Shell, token: str) -> Client:
    return Client(
        urls[0],
        authentication=AuthenticationToken((shell.directory / token).read_text().strip()),
        tls_trust_certs_file_path=str(shell.directory / "ca.crt"),
        operation_timeout_seconds=30,
    )


def test_there_are_ten_lines() -> None:
    assert len(LINES) == 10


def test_line_1_installs_what_the_others_need() -> None:
    assert LINES[0] in _INSTALL.replace("pybroker[", ".[")
    assert "security = [" in (ROOT / "pyproject.toml").read_text()


def test_line_2_makes_a_secret_for_its_owner(shell: Shell) -> None:
    key = shell.directory / "secret.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32


@pytest.mark.parametrize(("file", "role"), [("admin.token", "admin"), ("app.token", "app")])
def test_lines_3_and_4_make_tokens(shell: Shell, file: str, role: str) -> None:
    said = shell.run(f"pybroker tokens validate -sk secret.key -f {file}")
    assert f'"sub":"{role}"' in said
    assert ('"exp"' in said) is (role == "app")


def test_lines_5_to_8_are_aconfiguration(shell: Shell) -> None:
    config = load_config(shell.directory / "broker.conf")
    assert config.broker_service_port is config.web_service_port is None
    assert (config.broker_service_port_tls, config.web_service_port_tls) == (6651, 8443)
    assert config.super_user_roles == ("admin",)
    assert config.authentication_enabled
    assert config.authorization_enabled
    assert config != BrokerConfig()


def test_line_9_is_allowed_beyond_this_machine(shell: Shell) -> None:
    from pybroker.process.cli import _parser
    from pybroker.process.configuration import configuration

    arguments = LINES[8].split()[1:]
    arguments[arguments.index("broker.conf")] = str(shell.directory / "broker.conf")
    assert not configuration(_parser().parse_args(arguments)).local_only


def test_line_9_serves_with_tls_alone(urls: list[str]) -> None:
    assert [url.partition("://")[0] for url in urls] == ["pulsar+ssl", "https"]


def test_line_10_lets_the_role_in(urls: list[str], shell: Shell) -> None:
    with client(urls, shell, "app.token") as refused, pytest.raises(PulsarException):
        refused.create_producer(TOPIC)
    line = LINES[9].replace("https://localhost:8443", urls[1])
    if shutil.which("curl") is None:
        pytest.fail("curl is not installed")
    shell.run(line)
    with client(urls, shell, "app.token") as app:
        app.create_producer(TOPIC).send(b"x")
        app.subscribe(TOPIC, "s")


@pytest.mark.slow
def test_other_roles_may_only_read_the_metrics(urls: list[str], shell: Shell) -> None:
    trust = ssl.create_default_context(cafile=shell.directory / "ca.crt")
    answer = httpx.get(urls[1] + "/admin/v2/tenants", verify=trust)
    assert answer.status_code == 401
    assert httpx.get(urls[1] + "/metrics", verify=trust).status_code == 200
    stranger = Client(
        urls[0],
        tls_trust_certs_file_path=str(shell.directory / "ca.crt"),
        operation_timeout_seconds=5,
    )
    with stranger, pytest.raises(PulsarException):
        stranger.create_producer(TOPIC)
