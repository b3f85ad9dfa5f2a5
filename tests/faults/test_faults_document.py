"""The section on faults in docs/testing.md."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks

import pybroker.testing
from pybroker.commands.faults.main import main

TEST, COMMANDS = (
    block.text
    for block in blocks(ROOT / "docs/testing.md")
    if "test_faults_document" in block.declared
)


@pytest.mark.slow
def test_its_tests_pass(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_its_commands_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pybroker.testing.broker(http=True, faults=True) as broker:
        monkeypatch.setenv("PULSAR_ADMIN_URL", broker.admin_url)
        for line in COMMANDS.splitlines():
            program, group, *words = shlex.split(line)
            assert (program, group) == ("pybroker", "faults")
            assert main(words) == 0
