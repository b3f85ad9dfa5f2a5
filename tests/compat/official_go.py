"""The official Go client, driven from Python: the tests of the Go package in `go/`, built once.

Each test is a function; the comment `Feature: name, name` above it names what it shows.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from typing import Final

from one_at_a_time import one_at_a_time

SOURCES: Final = Path(__file__).with_name("go")
TEST_TIMEOUT_S: Final = 240
BUILD_TIMEOUT_S: Final = 900  # with all its dependencies, the first time
_TEST: Final = re.compile(r"((?:^//.*\n)*)^func (Test\w+)\(t \*testing\.T\)", re.MULTILINE)
_FEATURES: Final = re.compile(r"^// Feature: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GoTest:
    name: str
    features: tuple[str, ...]


def go_tests(source: Path) -> Iterator[GoTest]:
    for comment, name in _TEST.findall(source.read_text()):
        named = _FEATURES.findall(comment)
        yield GoTest(name, tuple(each.strip() for line in named for each in line.split(",")))


@cache
def built() -> Path:
    """The test program. It is built without cgo, so it needs no C compiler and links fast."""
    with one_at_a_time("go-client") as folder:
        folder.mkdir(exist_ok=True)
        program, fresh = folder / "compat.test", folder / "fresh.test"
        go("test", "-c", "-o", str(fresh), ".")
        fresh.replace(program)  # another process may be running the old one
        return program


def go(*words: str, tool: str = "go") -> str:
    """Run go; returns its output. Without go in PATH, uses its installer's location."""
    command = [which(tool) or f"/usr/local/go/bin/{tool}", *words]
    environment = os.environ | {"CGO_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=SOURCES, env=environment, stdout=subprocess.PIPE, timeout=BUILD_TIMEOUT_S
    )
    assert done.returncode == 0, f"{command} failed"
    return done.stdout.decode()


def run_go_test(name: str, surroundings: Mapping[str, str]) -> None:
    """Run a Go test; fails with its output."""
    command = [str(built()), "-test.run", f"^{name}$", "-test.v"]
    done = subprocess.run(
        [*command, "-test.timeout", f"{TEST_TIMEOUT_S}s"],
        env=os.environ | surroundings,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S + 10,
    )
    said = done.stdout + done.stderr
    assert f"--- PASS: {name} " in said, f"{name} ended with code {done.returncode}:\n{said}"
