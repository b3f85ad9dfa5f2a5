"""What a worker of Spark has loaded is no garbage to look for between two tasks."""

import gc
import subprocess
import sys

import pytest
from pyspark import TaskContext

from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.loaded import keep_what_is_loaded
from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading.spans import Reading, read_span
from pybroker.spark.reading.work import Work
from pybroker.spark.writing.attempt import Job, write


def reads() -> None:
    """A span of nothing."""
    reading = Reading(Endpoint("pulsar://nobody:1"), Shape.of(default_schema()))
    work = Work("t", Span(Position(0, 0), Position(0, 0)))
    assert list(read_span(reading, work)) == []


def writes() -> None:
    job = Job(connect=None, txn_id=None, notes=None, transaction_timeout_ms=1, max_driver_bytes=1)
    assert write(job, []).messages == 0


@pytest.mark.parametrize("task", [reads, writes])
def test_it_is_left_out_once_and_in_tasks_of_spark_alone(monkeypatch, task):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    for context, wanted in ((None, []), ("a task", [1])):
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        keep_what_is_loaded.cache_clear()
        task()
        task()
        assert frozen == wanted
    keep_what_is_loaded.cache_clear()


def test_a_process_that_reads_imports_nothing_of_what_writes():
    script = """
import sys
import pybroker.spark.reading.batch
assert not [name for name in sys.modules if name.startswith("pybroker.spark.writing")]
import pybroker.spark
for name in pybroker.spark.__all__:
    assert getattr(pybroker.spark, name).__name__ == name
import pybroker.spark.work
assert not hasattr(pybroker.spark, "nothing")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
