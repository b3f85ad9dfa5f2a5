"""An environment in which a shell finds this checkout's `pybroker`, run by this Python."""

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment_with_pybroker(commands: Path) -> dict[str, str]:
    """`commands` is a folder that is created for the command and comes first in PATH."""
    commands.mkdir()
    pybroker = commands / "pybroker"
    pybroker.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pybroker "$@"\n')
    pybroker.chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
