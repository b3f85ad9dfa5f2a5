"""Every target of the Makefile runs in CI, in its smallest form: those that README.md and
docs/development.md name, and the others. left_out.py has the exceptions and their reasons.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from filecmp import cmp
from pathlib import Path
from typing import Final

import left_out
import pytest
from documents import ROOT, blocks

MAKEFILE: Final = (ROOT / "Makefile").read_text()
TARGETS: Final = re.findall(r"^([a-z-]+):(?! export)", MAKEFILE, re.MULTILINE)
RECIPES: Final = dict(re.findall(r"^([a-z-]+):(?! export)([^\n]*\n(?:\t.*\n)*)", MAKEFILE, re.M))

# Run by .ci/run, or by `make test` before all tests.
BY_CI: Final = ("demo", "test", "check", "browser")

# Their arguments here, in a checkout. FOLDER is a temporary folder.
SMALLEST: Final[Mapping[str, str]] = {
    "help": "",
    "bench": "publish-100b --runs 1 --scale 0.001",
    "simulate": "--seeds 2 --jobs 1",
    "spec": "fencing",
    "kill-rounds": "--rounds 1",
    "database-kills": "--rounds 1",
    "extremes": "--every 200 --longest-stall-ms 60000",
    "mutate": "pybroker/transaction/this_turn.py --tests tests/transaction/test_txn_this_turn.py "
    "--sample 2 --jobs 1 --seeds 0 --books FOLDER/books --map FOLDER/map",
}

# Their programs start, and these tests run what they run.
IN_TESTS: Final[Mapping[str, str]] = {
    "spark-kills": "tests/spark/test_spark_kills.py",
    "spark-backlog": "tests/spark/test_spark_backlog.py",
    "docs": "tests/tidy/test_documentation_site.py",
}

# They change the checkout: they run in a copy of it, after which these files are as before.
IN_A_COPY: Final[Mapping[str, tuple[str, ...]]] = {
    "proto": ("pybroker/wire/pulsar_api_pb2.py", "pybroker/wire/pulsar_api_pb2.pyi"),
    "clients": ("docs/clients.md",),
    "metrics": ("docs/metrics.md",),
}


def environment() -> dict[str, str]:
    """As in a shell, without what pytest and the `make` that started it tell their children."""
    foreign = ("PYTEST", "MAKE", "MFLAGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def made(target: str, arguments: str = "", folder: Path = ROOT) -> str:
    """What `make` prints. It uses this Python, and installs nothing."""
    command = ["make", "--no-print-directory", "-o", ".venv/test", f"PY={sys.executable}", target]
    ended = subprocess.run(
        [*command, *([f"ARGS={arguments}"] if arguments else [])],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:]
    return ended.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources, without what was installed or built."""
    kept = (".ci", "docker", "docs", "examples", "managed_ledger", "pybroker", "spec", "tests")
    for name in kept:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, tmp_path)
    return tmp_path


def test_every_target_runs_somewhere_or_says_why_not() -> None:
    elsewhere = ("cluster-kill-rounds", "release", "clean")  # tests of their own, below
    listed = [*BY_CI, *SMALLEST, *IN_TESTS, *IN_A_COPY, *left_out.TARGETS, *elsewhere]
    assert sorted(listed) == sorted(TARGETS)
    assert set(re.findall(r"\S+", MAKEFILE.split(".PHONY:")[1].split("\n")[0])) == set(TARGETS)


def test_ci_runs_what_it_is_said_to_run() -> None:
    in_ci = re.findall(r"^make ([a-z-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    before = [each for target in in_ci for each in RECIPES[target].split("##")[0].split()]
    assert set(BY_CI) <= {*in_ci, *before}


@pytest.mark.parametrize("document", ["README.md", "docs/development.md"])
def test_blocks_with_make_have_targets_only(document: str) -> None:
    (block,) = (each for each in blocks(ROOT / document) if each.text.startswith("make "))
    for line in block.text.splitlines():
        command = re.match(r"make ([a-z-]+) ", line)
        assert command is not None and command[1] in TARGETS, line


@pytest.mark.parametrize("target", IN_TESTS)
def test_what_runs_in_tests_is_what_the_target_runs(target: str) -> None:
    test = (ROOT / IN_TESTS[target]).read_text()
    assert f"`make {target}`" in test
    script = re.search(r"tests/\w+/(\w+)\.py", RECIPES[target])
    assert "Makefile" in test if script is None else f"import {script[1]}\n" in test


@pytest.mark.slow
@pytest.mark.parametrize("target", [each for each in IN_TESTS if "ARGS" in RECIPES[each]])
def test_the_program_of_a_target_starts(target: str) -> None:
    assert "usage: " in made(target, "--help")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", SMALLEST)
def test_a_target_runs_in_its_smallest_form(target: str, tmp_path: Path) -> None:
    made(target, SMALLEST[target].replace("FOLDER", str(tmp_path)))


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
def test_a_round_of_kills_in_a_cluster() -> None:
    assert "1 rounds: " in made("cluster-kill-rounds", "--rounds 1")


@pytest.mark.slow
@pytest.mark.parametrize("target", IN_A_COPY)
def test_what_a_target_writes_is_in_the_checkout(target: str, copy: Path) -> None:
    for name in IN_A_COPY[target]:
        without_a_line = (copy / name).read_text().splitlines(keepends=True)
        rows = [at for at, line in enumerate(without_a_line) if line.startswith("|")]
        del without_a_line[rows[-1] if rows else -1]
        (copy / name).write_text("".join(without_a_line))
    made(target, folder=copy)
    for name in IN_A_COPY[target]:
        assert cmp(copy / name, ROOT / name, shallow=False), name


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_release_is_built_and_cleaned_away(copy: Path) -> None:
    dated = {"SOURCE_DATE_EPOCH": "1700000000"}  # the copy has no commits
    before = {path.name for path in copy.iterdir()}
    command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", "release"]
    subprocess.run(command, cwd=copy, env=environment() | dated, check=True)
    assert {path.suffix for path in (copy / "dist").iterdir()} == {".whl", ".gz", ".json"}
    made("clean", folder=copy)
    assert {path.name for path in copy.iterdir()} <= before
