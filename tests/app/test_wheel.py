"""The wheel, used as somebody does who installs it: from nowhere near the checkout."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # pip builds it

PROJECT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "pybroker", "managed_ledger")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the wheel was installed to."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in SOURCES:  # a copy: building leaves files behind
        path = PROJECT / name
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, source / name)
    wheels = source / "wheels"
    pip(["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)])
    (wheel,) = wheels.glob("*.whl")
    pip(["install", "--no-deps", "--target", str(target), str(wheel)])
    return target


def pip(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def python(installed: Path, directory: Path, *arguments: str) -> str:
    """What Python says that has the installed wheel before everything else."""
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_java_clients_coordinates_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    options = "list(jars._ivy_options(jars._POM, jars._POM.parent))"
    script = f"from pybroker.spark import jars; print(jars.__file__, {options})"
    said = python(installed, tmp_path, "-c", script)
    assert said.startswith(str(installed))
    assert "'org.apache.pulsar', 'pulsar-client'" in said


TEST = """
def test_a_broker(pulsar_broker, pulsar_broker_shared):
    assert pulsar_broker.service_url != pulsar_broker_shared.service_url
"""


@pytest.mark.parametrize("conftest", ["", 'pytest_plugins = ["pybroker.testing.pytest_plugin"]'])
def test_pytest_finds_the_fixtures_of_the_wheel(
    installed: Path, tmp_path: Path, conftest: str
) -> None:
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_one.py").write_text(TEST)
    said = python(installed, tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "test_one.py")
    assert "1 passed" in said


def test_the_fixtures_can_be_left_out(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_nothing(pytestconfig): pass")
    options = ["-p", "no:cacheprovider", "-p", "no:pybroker", "--fixtures"]
    assert "pulsar_broker" not in python(installed, tmp_path, "-m", "pytest", *options)
    assert "pulsar_broker" in python(
        installed, tmp_path, "-m", "pytest", *options[:2], "--fixtures"
    )
