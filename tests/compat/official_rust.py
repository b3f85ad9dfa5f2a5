"""The Rust crate `pulsar`, driven from Python: the tests of the package in `rust/`, built once.

Each test is a function; the comment `Feature: name, name` above it names what it shows.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from one_at_a_time import one_at_a_time

SOURCES: Final = Path(__file__).with_name("rust")
TEST_TIMEOUT_S: Final = 240
BUILD_TIMEOUT_S: Final = 900  # with all its dependencies, the first time
_TEST: Final = re.compile(r"((?:^///.*\n)*)^#\[tokio::test\]\nasync fn (\w+)\(\)", re.MULTILINE)
_FEATURES: Final = re.compile(r"^/// Feature: (.+)$", re.MULTILINE)
# The crate's build needs protoc; grpcio-tools, which the tests install, has one.
_PROTOC: Final = Path(sys.executable).with_name("python-grpc-tools-protoc")


@dataclass(frozen=True, slots=True)
class RustTest:
    name: str
    features: tuple[str, ...]


def rust_tests() -> Iterator[RustTest]:
    for comment, name in _TEST.findall((SOURCES / "src" / "lib.rs").read_text()):
        named = _FEATURES.findall(comment)
        yield RustTest(name, tuple(each.strip() for line in named for each in line.split(",")))


@cache
def built() -> Path:
    """The test program."""
    with one_at_a_time("rust-client") as folder:
        command = ["cargo", "test", "--locked", "--no-run", "--message-format=json", "--quiet"]
        environment = os.environ | {"CARGO_TARGET_DIR": str(folder), "PROTOC": str(_PROTOC)}
        done = subprocess.run(
            command, cwd=SOURCES, env=environment, capture_output=True, timeout=BUILD_TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr.decode()
        said = [json.loads(line) for line in done.stdout.splitlines()]
        (program,) = [each["executable"] for each in said if each.get("executable")]
        return Path(program)


def run_rust_test(name: str, surroundings: Mapping[str, str]) -> None:
    """Run a Rust test; fails with its output."""
    done = subprocess.run(
        [built(), "--exact", name, "--nocapture"],
        env=os.environ | surroundings,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
    )
    said = done.stdout + done.stderr
    assert "test result: ok. 1 passed" in said, f"{name} ended with {done.returncode}:\n{said}"
