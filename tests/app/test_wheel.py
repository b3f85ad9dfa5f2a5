"""The wheel, used as installed: far from the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # pip builds it

PROJECT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "pybroker", "managed_ledger")


MAX_BYTES = 2 * 2**20  # without the modules for several brokers and for Kafka's clients
MAX_CLUSTER_BYTES = 250_000
MAX_KAFKA_BYTES = 280_000
OF_CLUSTERS = (
    *("pybroker/cluster/", "pybroker/moving/", "pybroker/formats/"),
    *("pybroker/handing_over/", "pybroker/admin/over_brokers/"),
    *("managed_ledger/storage/bookkeeper/", "managed_ledger/storage/zookeeper/"),
)
_HEADERS = 30 + 46  # bytes per file in a zip, plus its name twice
BUILT_AT = {"SOURCE_DATE_EPOCH": "1700000000"}


def built(source: Path) -> Path:
    """The wheel, built from a copy of the project, because a build leaves files."""
    for name in SOURCES:
        path = PROJECT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    wheels = source / "wheels"
    pip(["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)])
    (wheel,) = wheels.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which the wheel was installed."""
    target = tmp_path_factory.mktemp("site")
    pip(["install", "--no-deps", "--target", str(target), str(wheel)])
    return target


def pip(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, *arguments],
        env=os.environ | BUILT_AT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_sources_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert built(tmp_path).read_bytes() == wheel.read_bytes()


def bytes_of(archive: zipfile.ZipFile, *folders: str) -> int:
    return sum(
        each.compress_size + _HEADERS + 2 * len(each.filename)
        for each in archive.infolist()
        if each.filename.startswith(folders)
    )


def test_the_wheel_is_small_and_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        of_clusters = bytes_of(archive, *OF_CLUSTERS)
        of_kafka = bytes_of(archive, "pybroker/kafka/")
    assert wheel.stat().st_size - of_clusters - of_kafka < MAX_BYTES
    assert of_clusters < MAX_CLUSTER_BYTES
    assert of_kafka < MAX_KAFKA_BYTES
    assert {"pybroker/py.typed", "managed_ledger/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name]


def test_the_command_of_the_wheel_starts(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "pybroker"
    assert command.exists()  # `pipx run` starts it
    first_steps = python(installed, tmp_path, str(command))
    assert "pybroker demo" in first_steps
    version = python(installed, tmp_path, "-c", "import pybroker; print(pybroker.__version__)")
    assert python(installed, tmp_path, str(command), "--version") == f"pybroker {version}"


def python(installed: Path, directory: Path, *arguments: str) -> str:
    """The output of Python with the installed wheel first in its path."""
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
