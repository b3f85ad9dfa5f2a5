"""docs/kafka.md: its examples, as typed."""

import subprocess
import sys
from pathlib import Path

from documents import ROOT, Block, blocks
from typed_commands import environment_with_pybroker

import pybroker.testing

GUIDE = ROOT / "docs/kafka.md"
BLOCKS = blocks(GUIDE)
TIMEOUT_S = 100


def block(beginning: str) -> Block:
    (found,) = [each for each in BLOCKS if each.text.startswith(beginning)]
    return found


def printed_after(example: Block) -> str:
    return BLOCKS[BLOCKS.index(example) + 1].text


def run(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_broker_says_where_kafkas_clients_find_it(tmp_path: Path) -> None:
    example = block("pybroker standalone")
    ports = ["--port", "0", "--http-port", "0", "--kafka-port", "0"]
    command = [*example.text.split(), *ports]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_with_pybroker(tmp_path / "commands"),
    ) as broker:
        assert broker.stdout is not None
        said = broker.stdout.readline().split()
        broker.terminate()
    typed = GUIDE.read_text().partition("it prints `")[2].partition("`")[0].split()
    assert [word.rpartition(":")[0] for word in said] == [w.rpartition(":")[0] for w in typed]
    assert typed[-1] == "kafka://localhost:9092"


def test_both_protocols_meet_in_a_topic() -> None:
    example = block("from confluent_kafka import Consumer, Producer")
    with pybroker.testing.broker(kafka=True, kafka_group_initial_rebalance_delay_ms=0) as broker:
        code = example.text.replace("localhost:9092", broker.kafka_bootstrap)
        code = code.replace("pulsar://localhost:6650", broker.service_url)
        assert run(code) == printed_after(example)


def test_a_broker_in_the_process() -> None:
    assert "orders" in run(block("import pybroker.testing").text)


def test_a_fixture_serves_kafkas_clients(tmp_path: Path) -> None:
    (tmp_path / "test_order.py").write_text(block("import pytest\nfrom confluent_kafka").text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_order.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0 and "1 passed" in ended.stdout, ended.stdout + ended.stderr
