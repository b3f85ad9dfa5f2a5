"""Virtual environments with other packages than the installed ones, created once per list."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from one_at_a_time import one_at_a_time

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]
ALLOWED_WITH_SPARK: Final[list[str]] = [*PROJECT["dependencies"], *EXTRAS["spark"]]
FOR_SPARK_TESTS: Final = (
    *("pytest", "pytest-timeout", "hypothesis", "pulsar-client"),
    *EXTRAS["compression"],
    *EXTRAS["encryption"],
    *EXTRAS["security"],
)
_INSTALL_S: Final = 900


def environment(name: str, requirements: Sequence[str], base: Path | None = None) -> Path:
    """The environment's Python; `base` is the interpreter that makes it, this one by default."""
    with one_at_a_time(f"environment-{name}") as folder:
        wanted = "\n".join([sys.version, str(base), *requirements])
        made, python = folder / "made-of.txt", folder / "bin" / "python"
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([base or sys.executable, "-m", "venv", folder], check=True)
            install = [python, "-m", "pip", "install", "--quiet", *requirements]
            subprocess.run(install, check=True, timeout=_INSTALL_S)
            made.write_text(wanted)
        return python


def oldest(requirements: Sequence[str]) -> list[str]:
    """The oldest allowed versions."""
    return [each.partition(",")[0].replace(">=", "==") for each in requirements]


def with_spark(version: str) -> list[str]:
    """What pybroker needs with this version of PySpark, and its tests."""
    others = [each for each in ALLOWED_WITH_SPARK if not each.startswith("pyspark")]
    return [*others, f"pyspark=={version}", *FOR_SPARK_TESTS]


def run_tests(python: Path, *arguments: str, **more: str) -> str:
    """Run tests there, with more environment variables; returns pytest's output."""
    command = [python, "-m", "pytest", "-p", "no:cacheprovider"]
    for plugin in ("pybroker.pytest_plugin", "pytest_timeout", "_hypothesis_pytestplugin"):
        command += ["-p", plugin]
    places = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    # Only an installed checkout has an entry point for its plugin.
    places["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    result = subprocess.run(
        [*command, "--tb=short", *arguments],
        cwd=ROOT,
        env={**os.environ, **places, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout
