"""The replacement of Apache Pulsar's image, tested without a container.

It checks its files, laid out as in the Dockerfile; its commands, run like those of the
testcontainers modules; and the conditions that these modules wait for.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.configuration.config_file import camel_case, load_config

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = "/admin/v2/clusters"
COORDINATORS = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
FREE_PORTS = {"PULSAR_PREFIX_brokerServicePort": "0", "PULSAR_PREFIX_webServicePort": "0"}
# The commands of the modules for Java and Go, for Rust, and for .NET, after its own script.
COMMANDS = {
    "java and go": "{home}/bin/apply-config-from-env.py {home}/conf/standalone.conf "
    "&& bin/pulsar standalone --no-functions-worker -nss",
    "rust": "bin/apply-config-from-env.py conf/standalone.conf && bin/pulsar standalone",
    "dotnet": "bin/pulsar standalone --no-functions-worker --no-stream-storage",
    "plain": "bin/pulsar standalone",
}
SENTENCES = (
    "HTTP Service started at",
    "Successfully updated the policies on namespace public/default",
    "messaging service is ready",
)


class Container:
    def __init__(self, folder: Path) -> None:
        self.home = folder / "pulsar"
        tools = folder / "tools"
        tools.mkdir()
        (tools / "python3").symlink_to(sys.executable)
        pybroker = tools / "pybroker"
        pybroker.write_text(f'#!/bin/sh\nexec {sys.executable} -m pybroker "$@"\n')
        pybroker.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        subprocess.run(
            [ROOT / "docker" / "lay-out.sh", self.home], env=self.environment, check=True
        )

    def run(self, words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Runs words in a shell, like `docker exec`."""
        return subprocess.run(
            ["/bin/bash", "-c", words],
            cwd=self.home,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @contextmanager
    def started(self, command: str, **environment: str) -> Iterator["Started"]:
        running = subprocess.Popen(
            ["/bin/bash", "-c", command.format(home=self.home)],
            cwd=self.home,
            env=self.environment | FREE_PORTS | environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert running.stdout is not None
        try:
            yield Started(running, running.stdout)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            running.stdout.close()


class Started:
    """What a waiting module sees."""

    def __init__(self, process: "subprocess.Popen[str]", out: IO[str]) -> None:
        self.process = process
        self.said = ""
        for line in out:
            self.said += line
            if SENTENCES[-1] in line:
                break
        found = re.search(r"pybroker ready (\S+) (\S+)", self.said)
        assert found is not None, self.said
        self.service_url, self.admin_url = (
            url.replace("0.0.0.0", "127.0.0.1") for url in found.groups()
        )


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def with_ports(container: Container) -> None:
    """Sets free ports for commands that do not apply the environment."""
    container.run("bin/apply-config-from-env.py conf/standalone.conf", **FREE_PORTS)


@pytest.mark.slow
@pytest.mark.parametrize("module", COMMANDS)
def test_a_module_that_starts_it_sees_it_ready(container: Container, module: str) -> None:
    with_ports(container)
    with container.started(COMMANDS[module]) as started:
        for sentence in SENTENCES:
            assert sentence in started.said
        clusters = httpx.get(started.admin_url + CLUSTERS)
        assert (clusters.status_code, clusters.text) == (200, '["standalone"]')
        assert httpx.get(started.admin_url + "/metrics").status_code == 200


@pytest.mark.slow
def test_with_transactions_their_coordinators_are_there(container: Container) -> None:
    command = COMMANDS["java and go"]
    with container.started(command, PULSAR_PREFIX_transactionCoordinatorEnabled="true") as started:
        answer = httpx.get(started.admin_url + COORDINATORS)
        assert (answer.status_code, answer.json()["partitions"]) == (200, 16)


@pytest.mark.slow
def test_a_cluster_may_have_another_name(container: Container) -> None:
    command = COMMANDS["java and go"]
    with container.started(command, PULSAR_PREFIX_clusterName="mine") as started:
        assert httpx.get(started.admin_url + CLUSTERS).text == '["mine"]'


@pytest.mark.slow
def test_the_process_that_serves_gets_the_signals(container: Container) -> None:
    """The broker replaces the shell, so `docker stop` reaches it, and it stops in order."""
    with_ports(container)
    with container.started(f"exec {COMMANDS['plain']}") as started:
        os.kill(started.process.pid, signal.SIGTERM)
        assert started.process.wait(60) == 0


@pytest.mark.slow
def test_its_admin_and_client_talk_to_it(container: Container) -> None:
    with container.started(COMMANDS["rust"]) as started:
        conf = container.home / "conf" / "client.conf"
        conf.write_text(
            f"webServiceUrl={started.admin_url}/\nbrokerServiceUrl={started.service_url}/\n"
        )
        for words in (
            "bin/pulsar-admin brokers healthcheck",
            "bin/pulsar-admin tenants create test",
            "bin/pulsar-admin namespaces create test/test-ns",
            "bin/pulsar-admin topics create persistent://test/test-ns/test-topic",
            "bin/pulsar-client produce test/test-ns/test-topic --messages hello",
        ):
            ended = container.run(words)
            assert ended.returncode == 0, words + ended.stderr
        ended = container.run("bin/pulsar-client consume test/test-ns/test-topic -s s -p Earliest")
        assert "content:hello" in ended.stdout


@pytest.mark.slow
def test_with_authentication_as_the_dotnet_module_starts_it(container: Container) -> None:
    """The module's script, line by line, with its variables."""
    key = container.home / "secret.key"
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    environment = {
        "authenticateOriginalAuthData": "false",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": (
            "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
        ),
        "brokerClientAuthenticationPlugin": plugin,
        "CLIENT_PREFIX_authPlugin": plugin,
        "PULSAR_PREFIX_authenticationRefreshCheckSeconds": "5",
        "PULSAR_PREFIX_tokenSecretKey": f"file://{key}",
        "superUserRoles": "test-user",
    }
    script = "\n".join(
        (
            "set -e",
            "bin/pulsar tokens create-secret-key --output secret.key",
            "export brokerClientAuthenticationParameters=token:$(bin/pulsar tokens create "
            "--secret-key $PULSAR_PREFIX_tokenSecretKey --subject $superUserRoles)",
            "export CLIENT_PREFIX_authParams=$brokerClientAuthenticationParameters",
            "bin/apply-config-from-env.py conf/standalone.conf",
            "bin/apply-config-from-env-with-prefix.py CLIENT_PREFIX_ conf/client.conf",
            COMMANDS["dotnet"],
        )
    )
    with container.started(script, **environment) as started:
        refused = httpx.get(started.admin_url + CLUSTERS)
        assert refused.status_code == 401
        made = container.run(
            f"bin/pulsar tokens create --secret-key {key} --subject test-user "
            "--expiry-time 31536000s"
        )
        bearer = {"Authorization": f"Bearer {made.stdout.strip()}"}
        answer = httpx.get(started.admin_url + CLUSTERS, headers=bearer)
        assert (answer.status_code, answer.text) == (200, '["standalone"]')
        admin = container.run(f"bin/pulsar-admin --admin-url {started.admin_url} tenants list")
        assert "public" in admin.stdout, admin.stderr


@pytest.mark.slow
def test_it_runs_in_the_background_as_the_clients_own_tests_start_it(container: Container) -> None:
    with_ports(container)
    started = container.run("bin/pulsar-daemon start standalone -nfw -nss")
    try:
        assert started.returncode == 0, started.stderr
        (log,) = (container.home / "logs").glob("pulsar-standalone-*.log")
        url = re.search(r"HTTP Service started at (\S+)", log.read_text())
        assert url is not None
        assert httpx.get(url[1].replace("0.0.0.0", "127.0.0.1") + CLUSTERS).status_code == 200
        assert "runs as process" in container.run("bin/pulsar-daemon status standalone").stdout
        twice = container.run("bin/pulsar-daemon start standalone")
        assert twice.returncode == 1 and "runs already" in twice.stderr
    finally:
        stopped = container.run("bin/pulsar-daemon stop standalone")
    assert (stopped.returncode, stopped.stdout) == (0, "stopping standalone\n")
    assert "stopped; all data is on disk" in log.read_text()
    again = container.run("bin/pulsar-daemon stop standalone")
    assert (again.returncode, again.stdout) == (0, "no standalone to stop\n")


@pytest.mark.slow
def test_a_daemon_that_does_not_start_says_why(container: Container) -> None:
    ended = container.run("bin/pulsar-daemon start standalone", PULSAR_PREFIX_clusterNmae="x")
    assert ended.returncode == 1
    assert "unknown key 'clusterNmae'" in ended.stderr
    assert not (container.home / "bin" / "pulsar-standalone.pid").exists()


@pytest.mark.slow
def test_options_of_java_name_the_passwords_and_what_has_no_effect(container: Container) -> None:
    passwords = container.home / ".htpasswd"
    passwords.write_text("admin:$apr1$FG4AO6aX$KGYPuMs0ic9W7e7NMgHbk.\n")
    with_ports(container)
    environment = {
        "PULSAR_PREFIX_authenticationEnabled": "true",
        "PULSAR_PREFIX_authenticationProviders": "basic",
        "PULSAR_EXTRA_OPTS": "-Dpulsar.auth.basic.conf=.htpasswd -Dother=1",
        "PULSAR_LOG_LEVEL": "WARN",
    }
    command = f"{COMMANDS['plain']} 2>&1"
    with container.started(command, **environment) as started:
        assert httpx.get(started.admin_url + CLUSTERS).status_code == 401
        assert "PULSAR_EXTRA_OPTS: these have no effect here: -Dother=1" in started.said
        assert "INFO" not in started.said
    own = "bin/apply-config-from-env.py conf/standalone.conf"
    container.run(own, PULSAR_PREFIX_basicAuthConf="file:///nowhere")
    refused = container.run("bin/pulsar standalone", **environment)
    assert refused.returncode != 0
    assert "/nowhere" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bin/pulsar-daemon", "Usage: pulsar-daemon"),
        ("bin/pulsar-daemon start zookeeper", "zookeeper is not served here"),
        ("bin/pulsar-daemon status standalone", "standalone does not run"),
        ("bin/pulsar-daemon odd standalone", "odd is not served here"),
        ("bin/pulsar", "nothing is not served here"),
        ("bin/pulsar zookeeper", "zookeeper is not served here"),
        ("bin/pulsar standalone --odd", "does not know --odd"),
        ("bin/apply-config-from-env.py", "Usage"),
        ("bin/apply-config-from-env-with-prefix.py X", "Usage"),
    ],
)
def test_what_it_does_not_serve_is_told(container: Container, words: str, said: str) -> None:
    ended = container.run(words)
    assert ended.returncode != 0
    assert said in ended.stderr


@pytest.mark.slow
def test_options_of_what_there_is_none_of_are_taken(container: Container, tmp_path: Path) -> None:
    conf = tmp_path / "other.conf"
    shutil.copy(container.home / "conf" / "standalone.conf", conf)
    container.run(f"bin/apply-config-from-env.py {conf}", **FREE_PORTS)
    (container.home / "data" / "standalone").mkdir()
    left = container.home / "data" / "standalone" / "left"
    left.touch()
    words = f"-c {conf} -w -nfw --zookeeper-dir=/x --bookkeeper-port 1 --advertised-address me"
    with container.started(f"bin/pulsar standalone {words}") as started:
        assert "pybroker ready pulsar://me:" in started.said
        assert not left.exists()


def test_its_configuration_has_every_key_and_the_defaults(container: Container) -> None:
    path = container.home / "conf" / "standalone.conf"
    assert load_config(path) == BrokerConfig(bind_address="0.0.0.0")
    keys = {line.partition("=")[0].lower() for line in path.read_text().splitlines()[1:]}
    assert keys == {camel_case(name).lower() for name in BrokerConfig.__dataclass_fields__}
    assert "defaultRetentionSizeInMB=" in path.read_text()


def test_a_variable_sets_a_key_with_the_prefix_or_one_that_is_there(container: Container) -> None:
    container.run(
        "bin/apply-config-from-env.py conf/standalone.conf",
        PULSAR_PREFIX_defaultRetentionSizeInMB="7",
        PULSAR_PREFIX_managedLedgerDefaultEnsembleSize="1",
        brokerMaxConnections="50",
        odd="1",
    )
    path = container.home / "conf" / "standalone.conf"
    config = load_config(path)
    assert (config.default_retention_size_in_mb, config.broker_max_connections) == (7, 50)
    assert "managedLedgerDefaultEnsembleSize=1\n" in path.read_text()
    assert "odd" not in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x1e", "\u2028"])
def test_a_variable_sets_one_key_and_no_other(container: Container, end: str) -> None:
    container.run(
        "bin/apply-config-from-env.py conf/standalone.conf",
        PULSAR_PREFIX_clusterName=f"here{end}bindAddress=6.6.6.6",
    )
    config = load_config(container.home / "conf" / "standalone.conf")
    assert (config.bind_address, config.cluster_name) == ("0.0.0.0", "here bindAddress=6.6.6.6")


def test_scripts_may_turn_up_the_log_as_they_do_with_apache_pulsar(container: Container) -> None:
    changed = container.run("sed -i '/pulsar.log.level/{n;s/info/debug/}' conf/log4j2.yaml")
    assert (changed.returncode, changed.stderr) == (0, "")
    assert 'value: "debug"' in (container.home / "conf" / "log4j2.yaml").read_text()


def test_the_dockerfile_lays_out_what_is_tested_here() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "lay-out.sh /pulsar" in dockerfile
    found = re.search(r"FROM broker AS pulsar.*?CMD (\[.*?\])", dockerfile, re.DOTALL)
    assert found is not None
    words = json.loads(found[1])[2]
    assert words.replace("exec ", "") == COMMANDS["rust"]
