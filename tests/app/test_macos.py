"""macOS, simulated: what only Linux has is taken away, and the embedded engine works without it.

tests/support/no_linux.py says what is taken away.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    *("tests/managed_ledger", "tests/checking", "tests/doctor", "tests/testing"),
    "tests/behaviours/test_txn_endings.py",
)
DOCTOR = "tests/doctor/test_doctor.py"
LEFT_OUT = (
    "--ignore=tests/managed_ledger/test_direct_io.py",
    # Only /proc tells which process has locked a directory, and where it listens.
    f"--deselect={DOCTOR}::test_the_broker_that_runs_on_the_data_directory_is_recognised",
    f"--deselect={DOCTOR}::test_a_data_directory_in_use_by_a_process_without_ports_is_an_error",
)
FAST = "not slow and not java and not spark"
PLUGINS = ("pybroker.pytest_plugin", "pytest_timeout", "_hypothesis_pytestplugin")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_embedded_engine_needs_nothing_that_only_linux_has() -> None:
    command = [sys.executable, "tests/support/no_linux.py", "-p", "no:cacheprovider", "--tb=short"]
    for plugin in PLUGINS:
        command += ["-p", plugin]
    ended = subprocess.run(
        [*command, *LEFT_OUT, "-m", FAST, "--hypothesis-profile", "quick", *TESTS],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
    assert " syncs by F_FULLFSYNC" in ended.stdout.splitlines()[-1]
