"""The fixtures that pytest finds by itself, and the examples of docs/testing-tutorial.md
and docs/testing.md.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from documents import ROOT, blocks

pytestmark = pytest.mark.slow  # starts processes

TUTORIAL, REFERENCE = ROOT / "docs/testing-tutorial.md", ROOT / "docs/testing.md"
TIME = re.compile(r"^ *[\d:]+\.\d{3}  ")
HERE = "runs in tests/app/test_pytest_fixtures.py"
WRONG, BILLING, MENDED = (each.text for each in blocks(TUTORIAL) if each.declared == HERE)
TEST, INI, CLOCK = (each.text for each in blocks(REFERENCE) if each.declared == HERE)
HEAD = "import httpx, pytest\nVALUES = '/admin/v2/brokers/configuration/runtime'\n"


def run(
    folder: Path, test: str, ini: str = "[pytest]\n", options: Sequence[str] = ()
) -> "subprocess.CompletedProcess[str]":
    """Runs pytest in a separate process, with its own plugins and options."""
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text(ini)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"]
    return subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    for test, passed in ((TEST, "2 passed"), (CLOCK, "1 passed")):
        ended = run(tmp_path, test, INI)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert passed in ended.stdout


@pytest.mark.slow
def test_the_page_s_pipeline_fails_as_it_shows_and_is_mended(tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(WRONG)
    wrong = run(tmp_path, BILLING)
    assert "1 failed, 1 passed" in wrong.stdout, wrong.stdout + wrong.stderr
    (shown,) = (block for block in blocks(TUTORIAL) if "what pulsar_broker did" in block.text)
    said = [TIME.sub("", line) for line in wrong.stdout.splitlines()]
    assert [
        line
        for line in (TIME.sub("", each) for each in shown.text.splitlines())
        if line not in said
    ] == []
    (tmp_path / "billing.py").write_text(MENDED)
    mended = run(tmp_path, BILLING)
    assert "2 passed" in mended.stdout, mended.stdout + mended.stderr


def test_the_markers_settings_count_more_than_those_of_the_ini_file(tmp_path: Path) -> None:
    test = HEAD + (
        "settings = {'maxTopicsPerNamespace': 7, 'keepAliveIntervalSeconds': 50}\n"
        "pytestmark = pytest.mark.pulsar_broker(**settings)\n"
        "@pytest.mark.pulsar_broker(maxTopicsPerNamespace=8)\n"
        "def test_own(pulsar_broker, pulsar_broker_shared):\n"
        "    own = httpx.get(pulsar_broker.admin_url + VALUES).json()\n"
        "    shared = httpx.get(pulsar_broker_shared.admin_url + VALUES).json()\n"
        "    values = [own[k] for k in ('maxTopicsPerNamespace', 'keepAliveIntervalSeconds')]\n"
        "    assert values == ['8', '50']\n"
        "    assert own['brokerDeduplicationEnabled'] == 'true'\n"
        "    assert shared['maxTopicsPerNamespace'] == '100'\n"
    )
    ended = run(tmp_path, test, INI)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_key_that_nobody_knows_is_named(tmp_path: Path) -> None:
    test = HEAD + (
        "@pytest.mark.pulsar_broker(maxTopicPerNamespace=7)\n"
        "def test_own(pulsar_broker):\n    pass\n"
    )
    ended = run(tmp_path, test)
    assert ended.returncode != 0
    assert "did you mean maxTopicsPerNamespace?" in ended.stdout + ended.stderr


SCOPES = """
import pytest
pytestmark = pytest.mark.parametrize("run", range(6))
SEEN = []


def test_it(run, pulsar_broker, pulsar_broker_module, pulsar_broker_shared, pulsar_topic):
    SEEN.append((pulsar_broker_shared, pulsar_broker_module, pulsar_broker, pulsar_topic))
    shared, module, own, topics = (len(set(each)) for each in zip(*SEEN))
    assert (shared, module) == (1, 1)
    assert own == topics == len(SEEN)


def test_a_name_is_new(run, pulsar_broker_shared, pulsar_namespace, pulsar_client):
    topic = f"persistent://{pulsar_namespace}/orders"
    assert pulsar_broker_shared.backlog(topic, "s") == 0
    pulsar_client.create_producer(topic).send(b"one lamp")
"""


@pytest.mark.slow
def test_brokers_live_as_long_as_their_scope(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(SCOPES)
    ended = run(tmp_path, SCOPES)
    assert "24 passed" in ended.stdout, ended.stdout + ended.stderr


STORIES = """
def send(client, payload):
    client.create_producer("orders").send(payload)


def test_one(pulsar_broker_module, pulsar_client):
    send(pulsar_client, b"of a test that passes")


def test_two(pulsar_broker_module, pulsar_client, pulsar_faults):
    pulsar_faults.inject("lookup.before", "delay", seconds=0.001)
    send(pulsar_client, b"of a test that fails")
    assert not "this"


def test_three(pulsar_broker_module, pulsar_faults):
    assert not pulsar_faults.rules, "they end with their test"


class TestAsync:
    def test_four(self, pulsar_broker):
        import asyncio

        from pybroker.client import aio

        async def send():
            async with aio.Client(pulsar_broker.service_url) as client:
                producer = await client.create_producer("orders")
                await producer.send(b"of a coroutine")

        asyncio.run(send())
        pulsar_broker.stop()
        assert not "that"
"""


@pytest.mark.parametrize("options", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_a_failing_test_shows_what_its_broker_did(tmp_path: Path, options: Sequence[str]) -> None:
    ended = run(tmp_path, STORIES, options=options)
    assert "2 failed, 2 passed" in ended.stdout, ended.stdout + ended.stderr
    reports = re.split("_{5,} ", ended.stdout)[1:]  # in the order of completion
    two, four = sorted(reports, key=lambda report: "test_four" in report.partition(" ")[0])
    assert "what pulsar_broker_module did" in two and "b'of a test that fails'" in two
    assert "FAULT delay at lookup.before: orders" in two
    assert "what pulsar_broker did" in four and "b'of a coroutine'" in four
    assert "--- the broker was stopped ---" in four
    assert "of a test that passes" not in ended.stdout


ENDS = """
import pytest

@pytest.fixture
def orders(pulsar_client):
    producer = pulsar_client.create_producer("orders")
    yield producer
    producer.send(b"at the end")
    raise ValueError("cannot end")

def test_it(orders):
    pass

def test_another(pulsar_broker):
    assert not "this"
"""


def test_a_fixture_that_fails_at_its_end_shows_what_the_broker_did(tmp_path: Path) -> None:
    ended = run(tmp_path, ENDS)
    assert "1 failed, 1 passed, 1 error" in ended.stdout, ended.stdout + ended.stderr
    _, error, another = re.split("_{5,} ", ended.stdout)
    assert "what pulsar_broker did" in error and "b'at the end'" in error
    assert "at the end" not in another


@pytest.mark.slow
def test_workers_of_xdist_have_brokers_of_their_own(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"test_{number}.py").write_text(SCOPES)
    ended = run(tmp_path, SCOPES, options=["-n", "3", "--dist", "load"])
    assert "48 passed" in ended.stdout, ended.stdout + ended.stderr
