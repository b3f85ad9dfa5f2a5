"""axe-core, which finds accessibility problems of pages; installed from npm once per version."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from one_at_a_time import one_at_a_time

_SOURCES: Final = Path(__file__).parents[1] / "console" / "axe"
_NAMED: Final = ("package.json", "package-lock.json")
_INSTALL_TIMEOUT_S: Final = 600


@cache
def axe_source() -> str:
    with one_at_a_time("axe") as folder:
        installed = folder / "installed-from.json"
        wanted = (_SOURCES / "package-lock.json").read_text()
        if not installed.exists() or installed.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for name in _NAMED:
                shutil.copy(_SOURCES / name, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S
            )
            assert done.returncode == 0, done.stdout + done.stderr
            installed.write_text(wanted)
        return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
