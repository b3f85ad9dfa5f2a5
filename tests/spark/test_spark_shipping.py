"""A job is sent to a cluster whose Python has the libraries but not this project."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from environments import environment
from spark_cluster import SPARK_HOME, Cluster

from pybroker.client import Client, InitialPosition

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

JOB: Final = Path(__file__).with_name("spark_shipped_job.py")
TOPIC: Final = "persistent://public/default/shipped"
# Compiled packages, which must be installed there: they cannot be loaded from a zip.
INSTALLED: Final = ("pyarrow>=15", "pandas>=2.2,<3", "numpy>=1.26", "protobuf>=6.31.1,<8", "crc32c")
SENT: Final = ("pybroker", "managed_ledger", "sortedcontainers")


def packages(folder: Path) -> Path:
    for name in SENT:
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(found.origin).parent, folder / "packages" / name, ignore=ignored)
    return Path(shutil.make_archive(str(folder / "packages"), "zip", folder / "packages"))


def test_a_package_that_is_sent_with_the_job_does_all_the_work(broker, tmp_path):
    with Client(broker.service_url) as client:
        client.subscribe(TOPIC, "keep", initial_position=InitialPosition.Earliest).close()
    python = str(environment("executors", INSTALLED))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    environ |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    with Cluster(tmp_path) as cluster:
        command = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url]
        command += ["--py-files", packages(tmp_path), JOB, broker.service_url, TOPIC]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert f"came back: 1000 {sum(range(1000))}" in done.stdout, done.stderr[-5000:]
