"""The fixtures that pytest finds by itself, and the examples of docs/testing.md."""

import subprocess
import sys
from pathlib import Path

from documents import ROOT, blocks

TEST, INI, CLOCK = (block.text for block in blocks(ROOT / "docs/testing.md"))
HEAD = "import httpx, pytest\nVALUES = '/admin/v2/brokers/configuration/runtime'\n"


def run(folder: Path, test: str, ini: str = "[pytest]\n") -> "subprocess.CompletedProcess[str]":
    """A pytest of its own, in a process: its plugins and options are another's."""
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").write_text(ini)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    for test, passed in ((TEST, "2 passed"), (CLOCK, "1 passed")):
        ended = run(tmp_path, test, INI)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert passed in ended.stdout


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
