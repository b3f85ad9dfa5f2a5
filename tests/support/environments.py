"""Environments with other packages than those that are installed, each made once for its list."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from one_at_a_time import one_at_a_time

_INSTALL_S: Final = 900


def environment(name: str, requirements: Sequence[str]) -> Path:
    """Its Python."""
    with one_at_a_time(f"environment-{name}") as folder:
        wanted = "\n".join([sys.version, *requirements])
        made, python = folder / "made-of.txt", folder / "bin" / "python"
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            install = [python, "-m", "pip", "install", "--quiet", *requirements]
            subprocess.run(install, check=True, timeout=_INSTALL_S)
            made.write_text(wanted)
        return python
