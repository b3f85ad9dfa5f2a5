"""The containers' commands, tested without building an image."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "docker"
ADVERTISED = "localhost"


def commands() -> list[list[str]]:
    texts = [(DOCKER / name).read_text() for name in ("Dockerfile", "compose.yaml")]
    found = [re.search(r'\["standalone".*?\]', text, re.DOTALL) for text in texts]
    return [json.loads(match[0]) for match in found if match]


def test_both_files_start_the_broker():
    assert len(commands()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", commands(), ids=["image", "compose"])
def test_the_container_s_command_serves_in_every_network(command: list[str], tmp_path: Path):
    config = tmp_path / "broker.conf"
    config.write_text(f"advertisedAddress={ADVERTISED}\n")
    places = {"/data": str(tmp_path / "data"), "/broker.conf": str(config)}
    arguments = [places.get(argument, argument) for argument in command]
    with subprocess.Popen(
        [sys.executable, "-m", "pybroker", *arguments, "--port", "0", "--http-port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        try:
            assert broker.stdout is not None
            host = ADVERTISED if "--config" in command else "0.0.0.0"
            assert f"pybroker ready pulsar://{host}:" in broker.stdout.readline()
        finally:
            broker.kill()
