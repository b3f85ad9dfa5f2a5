"""The official Go client, driven from Python: the tests of the Go package in `go/`, built once; and
those of a client of Kafka's, in `go/kafka/`.

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
OF_KAFKA: Final = SOURCES / "kafka"
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


def franz_tests() -> Iterator[GoTest]:
    """Each of their features is a line of its own, since names have commas there."""
    for source in sorted(OF_KAFKA.glob("*_test.go")):
        for comment, name in _TEST.findall(source.read_text()):
            yield GoTest(name, tuple(_FEATURES.findall(comment)))


def all_built() -> None:
    built()
    built("kafka")


@cache
def built(package: str = ".") -> Path:
    """The test program. It is built without cgo, so it needs no C compiler and links fast."""
    with one_at_a_time("go-client") as folder:
        folder.mkdir(exist_ok=True)
        name = "compat" if package == "." else package
        program, fresh = folder / f"{name}.test", folder / "fresh.test"
        go("test", "-c", "-o", str(fresh), f"./{package}")
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


def run_go_test(name: str, surroundings: Mapping[str, str], package: str = ".") -> None:
    """Run a Go test; fails with its output."""
    command = [str(built(package)), "-test.run", f"^{name}$", "-test.v"]
    done = subprocess.run(
        [*command, "-test.timeout", f"{TEST_TIMEOUT_S}s"],
        env=os.environ | surroundings,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S + 10,
    )
    said = done.stdout + done.stderr
    assert f"--- PASS: {name} " in said, f"{name} ended with code {done.returncode}:\n{said}"
