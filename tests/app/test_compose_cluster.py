"""docker/compose.cluster.yaml, as far as it can be tested without Docker: the brokers' commands."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

COMPOSE = Path(__file__).parents[2] / "docker" / "compose.cluster.yaml"
FILE: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, Any] = FILE["services"]
BROKERS = sorted(name for name in SERVICES if name.startswith("broker-"))


def test_there_are_three_brokers_three_bookies_and_a_zookeeper() -> None:
    bookies = [name for name in SERVICES if name.startswith("bookie-")]
    assert len(BROKERS) == len(bookies) == 3 and "zookeeper" in SERVICES
    for name in bookies:
        assert SERVICES[name]["environment"]["advertisedAddress"] == name
        assert SERVICES[name]["environment"]["metadataServiceUri"].endswith("zookeeper:2181")


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_takes_its_settings(name: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(FILE["configs"]["broker"]["content"])
    command = [{"/broker.conf": str(conf)}.get(each, each) for each in SERVICES[name]["command"]]
    printed = subprocess.run(
        [sys.executable, "-m", "pybroker", *command, "--print-config"],
        env={**os.environ, **SERVICES[name]["environment"]},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    settings = dict(line.partition("#")[0].strip().split("=", 1) for line in printed.splitlines())
    assert settings["metadataStoreUrl"] == "zk:zookeeper:2181"
    assert settings["advertisedAddress"] == name
    listeners = settings["advertisedListeners"].split(",")
    urls = [urlsplit(each.partition(":")[2]) for each in listeners if each.startswith("host:")]
    published = [port.split(":")[1] for port in SERVICES[name]["ports"]]
    assert [str(url.port) for url in urls] == published
    assert f"compose:pulsar://{name}:6650" in listeners


def test_no_port_of_this_machine_is_published_twice() -> None:
    ports = [port.split(":")[1] for name in BROKERS for port in SERVICES[name]["ports"]]
    assert len(set(ports)) == len(ports)
