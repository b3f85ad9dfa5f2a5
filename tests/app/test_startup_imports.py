"""What the binary port must not wait for."""

import subprocess
import sys

HEAVY = ("starlette", "uvicorn", "h11", "anyio", "difflib", "http.client")


def test_the_binary_port_does_not_wait_for_the_web_framework() -> None:
    script = "import sys, pybroker.process.cli, pybroker.process.app; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert [name for name in HEAVY if name in ended.stdout.split()] == []
