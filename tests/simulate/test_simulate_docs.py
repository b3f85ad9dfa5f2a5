"""docs/testing-tutorial.md, "A thousand crashes": from the wrong pipeline to the mended one."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks

HERE = "runs in tests/simulate/test_simulate_docs.py"
WRONG, COMMAND, MENDED, TEST = (
    block.text for block in blocks(ROOT / "docs/testing-tutorial.md") if block.declared == HERE
)


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
def test_the_wrong_pipeline_is_found_and_the_mended_one_passes_its_test(tmp_path: Path) -> None:
    (tmp_path / "billing.py").write_text(WRONG)
    found = run(tmp_path, *shlex.split(COMMAND))
    assert found.returncode == 1, found.stdout + found.stderr
    assert "DOUBLED: " in found.stdout
    assert "again: pybroker simulate billing.py:scenario --seed " in found.stdout
    (tmp_path / "billing.py").write_text(f"{WRONG}\n\n{MENDED}")  # it replaces the old one
    (tmp_path / "test_billing.py").write_text(TEST)
    tested = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_billing.py")
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
