"""Spark Connect: Python has no JVM but uses a server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_under_spark_connect_topics_are_read_and_written_and_exactly_once_says_what_to_do(
    broker, tmp_path
):
    job = Path(__file__).with_name("spark_connect_job.py")
    result = subprocess.run(
        [sys.executable, job, broker.service_url, tmp_path],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in ("read: 100", "copied: 100", "refused: True"):
        assert line in result.stdout, result.stderr[-5000:]
