"""docs/security.md: its lines for two terminals, each run in a separate shell, in one directory."""

import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typed_commands import environment_with_pybroker

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import load_config
from pybroker.client import AuthenticationToken, Client
from pybroker.client.errors import PulsarException
from pybroker.security.keys import _INSTALL

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs/security.md").read_text()
FIRST, SECOND = (
    block.strip().splitlines() for block in re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL)
)
INSTALL, *PREPARE, START = FIRST
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
    """A shell where everything before the broker's start was typed, and with free ports."""
    directory = tmp_path_factory.mktemp("guide")
    made = Shell(directory)
    for line in PREPARE:
        made.run(line)
    text = (directory / "broker.conf").read_text()
    (directory / "free.conf").write_text(text.replace("6651", "0").replace("8443", "0"))
    return made


@pytest.fixture(scope="module")
def urls(shell: Shell) -> Iterator[list[str]]:
    """URLs of the broker that the first terminal's last line starts."""
    line = START.replace("broker.conf", "free.conf").replace("0.0.0.0", "127.0.0.1")
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


def test_the_first_line_installs_what_the_others_need() -> None:
    assert INSTALL in _INSTALL.replace("pybroker[", ".[")
    assert "security = [" in (ROOT / "pyproject.toml").read_text()


def test_keys_and_tokens_are_their_owners(shell: Shell) -> None:
    secrets = ("secret.key", "broker.key", "ca.key", "admin.token", "app.token")
    modes = {name: (shell.directory / name).stat().st_mode & 0o777 for name in secrets}
    assert modes == dict.fromkeys(secrets, 0o600)


@pytest.mark.parametrize(("file", "role"), [("admin.token", "admin"), ("app.token", "app")])
def test_tokens_name_a_role_and_expire(shell: Shell, file: str, role: str) -> None:
    said = shell.run(f"pybroker tokens validate -sk secret.key -f {file}")
    assert f'"sub":"{role}"' in said
    assert '"exp"' in said


def test_the_configuration_has_tls_and_permissions(shell: Shell) -> None:
    config = load_config(shell.directory / "broker.conf")
    assert config.broker_service_port is config.web_service_port is None
    assert (config.broker_service_port_tls, config.web_service_port_tls) == (6651, 8443)
    assert config.super_user_roles == ("admin",)
    assert config.authentication_enabled
    assert config.authorization_enabled
    assert config != BrokerConfig()


def test_the_broker_is_allowed_beyond_this_machine(shell: Shell) -> None:
    from pybroker.process.cli import _parser
    from pybroker.process.configuration import configuration

    arguments = START.split()[1:]
    arguments[arguments.index("broker.conf")] = str(shell.directory / "broker.conf")
    assert not configuration(_parser().parse_args(arguments)).local_only


def test_it_serves_with_tls_alone(urls: list[str]) -> None:
    assert [url.partition("://")[0] for url in urls] == ["pulsar+ssl", "https"]


def test_the_second_terminal_lets_the_role_in_and_shows_its_message(
    urls: list[str], shell: Shell
) -> None:
    with client(urls, shell, "app.token") as refused, pytest.raises(PulsarException):
        refused.create_producer(TOPIC)
    usual = ("pulsar+ssl://localhost:6651", "https://localhost:8443")
    said = ""
    for line in SECOND:
        for typed, mine in zip(usual, urls, strict=True):
            line = line.replace(typed, mine)
        said = shell.run(line)
    assert "content:hello\n" in said
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
