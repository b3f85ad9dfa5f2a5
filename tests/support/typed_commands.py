"""An environment in which a shell finds `pybroker`: this checkout's, run by this Python."""

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment_with_pybroker(commands: Path) -> dict[str, str]:
    """`commands` is a folder that is made for the command, and stands first on the PATH."""
    commands.mkdir()
    pybroker = commands / "pybroker"
    pybroker.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pybroker "$@"\n')
    pybroker.chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
