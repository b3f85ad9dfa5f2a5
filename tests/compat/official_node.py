"""The JavaScript client pulsar-flex, driven from Python: the functions of `node/compat.js`.

The comment `Feature: name, name` above a function names what it shows.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from one_at_a_time import one_at_a_time

SOURCES: Final = Path(__file__).with_name("node")
TEST_TIMEOUT_S: Final = 240
INSTALL_TIMEOUT_S: Final = 600
_NAMED: Final = ("package.json", "package-lock.json")
_TEST: Final = re.compile(r"((?:^//.*\n)*)^facts\.(\w+) = async", re.MULTILINE)
_FEATURES: Final = re.compile(r"^// Feature: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NodeTest:
    name: str
    features: tuple[str, ...]


def node_tests() -> Iterator[NodeTest]:
    for comment, name in _TEST.findall((SOURCES / "compat.js").read_text()):
        named = _FEATURES.findall(comment)
        yield NodeTest(name, tuple(each.strip() for line in named for each in line.split(",")))


@cache
def packages() -> Path:
    """The folder with the packages of package-lock.json, installed once per version of it."""
    with one_at_a_time("node-client") as folder:
        installed = folder / "installed-from.json"
        wanted = (SOURCES / "package-lock.json").read_text()
        if not installed.exists() or installed.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for name in _NAMED:
                shutil.copy(SOURCES / name, folder)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
            )
            assert done.returncode == 0, done.stdout + done.stderr
            installed.write_text(wanted)
        return folder


def run_node_test(name: str, surroundings: Mapping[str, str]) -> None:
    """Run a test in Node.js; fails with its output."""
    done = subprocess.run(
        ["node", SOURCES / "compat.js", name],
        env=os.environ | surroundings | {"PACKAGES": str(packages())},
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{said}"
