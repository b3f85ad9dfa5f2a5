"""Modules that the binary port must not wait for, and those that a single broker never loads."""

import subprocess
import sys

HEAVY = ("starlette", "uvicorn", "h11", "anyio", "difflib", "http.client")

OF_CLUSTERS = (
    "managed_ledger.storage.bookkeeper",
    "managed_ledger.storage.zookeeper",
    "pybroker.cluster",
    "pybroker.process.clustered",
)


def test_the_binary_port_does_not_wait_for_the_web_framework() -> None:
    script = "import sys, pybroker.process.cli, pybroker.process.app; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = ended.stdout.split()
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith(OF_CLUSTERS)] == []
