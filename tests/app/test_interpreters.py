"""Other versions of Python than the one that runs the tests: each that is on this machine.

They run the part of the fast tests that needs nothing but the package: storage, transactions, wire.
`make check PYTHON=python3.13 VENV=build/python3.13` runs all of the fast part on another one.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from environments import EXTRAS, PROJECT, environment, run_tests

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Version = tuple[int, int]
OLDEST: Final = (3, 11)
NAMED: Final[list[Version]] = sorted(
    (int(found[1]), int(found[2]))
    for each in PROJECT["classifiers"]
    if (found := re.search(r":: (\d+)\.(\d+)$", each)) is not None
)
CORE: Final = ("managed_ledger", "transaction", "wire")
NEEDED: Final = ("pytest", "hypothesis", "httpx")
FAST: Final = (
    "not slow and not java and not spark and not go and not rust and not node and not postgresql"
)


def candidates() -> Iterator[Path]:
    """PATH, pyenv's folder, and the one of GitHub's machines."""
    folders = map(Path, os.environ["PATH"].split(os.pathsep))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    hosted = Path(os.environ.get("RUNNER_TOOL_CACHE", "/opt/hostedtoolcache"))
    yield from chain.from_iterable(each.glob("python3.[0-9]*") for each in folders)
    yield from pyenv.glob("versions/*/bin/python3")
    yield from hosted.glob("Python/*/*/bin/python3")


def version_of(python: Path) -> Version | None:
    """None: this is no interpreter, or it does not start, as pyenv's shims of another version."""
    ask = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor = map(int, told.split())
    return major, minor


def others() -> dict[str, Path]:
    """One interpreter of each other version from the oldest on; this one if there is no other."""
    found: dict[Version, Path] = {}
    for python in filter(re.compile(r"python3(\.\d+)?$").search, map(str, candidates())):
        version = version_of(Path(python))
        if version is not None and OLDEST <= version != sys.version_info[:2]:
            found.setdefault(version, Path(python))
    named = {f"{major}.{minor}": python for (major, minor), python in sorted(found.items())}
    return named or {"{}.{}".format(*sys.version_info): Path(sys.executable)}


OTHERS: Final = others()


def test_the_package_names_each_version_from_the_oldest_on_without_a_gap() -> None:
    assert [(3, minor) for minor in range(OLDEST[1], NAMED[-1][1] + 1)] == NAMED
    assert PROJECT["requires-python"] == ">={}.{}".format(*OLDEST)


@pytest.mark.parametrize("version", OTHERS)
def test_the_core_of_the_fast_part_passes_on_another_python(version: str) -> None:
    needed = [
        *PROJECT["dependencies"],
        *EXTRAS["compression"],
        *(each for each in EXTRAS["test"] if each.startswith(NEEDED)),
    ]
    python = environment(f"python{version}", needed, OTHERS[version])
    folders = [f"tests/{each}" for each in CORE]
    output = run_tests(python, *folders, "-m", FAST, "--hypothesis-profile", "quick")
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None
    assert int(passed[1]) > 1_500, output[-500:]
