"""The official Go client, driven from Python: the tests of the Go package in `go/`, built once.

A test there is a function; what stands above it, `Feature: name, name`, is what it shows.
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
BUILD_TIMEOUT_S: Final = 900  # of all its dependencies, the first time
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
    """The test program. Without cgo: it needs no C compiler, and links in a moment."""
    with one_at_a_time("go-client") as folder:
        folder.mkdir(exist_ok=True)
        program, fresh = folder / "compat.test", folder / "fresh.test"
        go("test", "-c", "-o", str(fresh), ".")
        fresh.replace(program)  # somebody else may be running the one before
        return program


def go(*words: str, tool: str = "go") -> str:
    """What it prints. It is where its installer puts it, if the PATH does not know."""
    command = [which(tool) or f"/usr/local/go/bin/{tool}", *words]
    environment = os.environ | {"CGO_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=SOURCES, env=environment, stdout=subprocess.PIPE, timeout=BUILD_TIMEOUT_S
    )
    assert done.returncode == 0, f"{command} failed"
    return done.stdout.decode()


def run_go_test(name: str, surroundings: Mapping[str, str]) -> None:
    """Fails with what the test said."""
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
