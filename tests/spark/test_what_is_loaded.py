"""The modules that a Spark worker loads: their origin, and their exclusion from garbage
collections.
"""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark import TaskContext

from pybroker.client import Client
from pybroker.spark import register
from pybroker.spark.columns.arrays import byte_strings, vector
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.loaded import keep_what_is_loaded
from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading.spans import Reading, read_span
from pybroker.spark.reading.work import Work
from pybroker.spark.startup import sitecustomize
from pybroker.spark.writing.attempt import Job, write


def reads() -> None:
    """Read an empty span."""
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


@pytest.fixture
def installed(tmp_path):
    """The paths of a PySpark package, beside a user's sitecustomize, and of its zip."""
    package = tmp_path / "site" / "pyspark"
    (package / "python" / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    zipped = package / "python" / "lib" / "pyspark.zip"
    with ZipFile(zipped, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.somebody = 'ran'\n")
    return str(tmp_path / "site"), str(zipped)


def started(*path):
    """Start a process with this path, as Spark does; returns the place of its PySpark, the mark of
    the user's sitecustomize, and its path.
    """
    script = (
        "import pyspark, sys; print(pyspark.__file__, getattr(sys, 'somebody', None), sys.path)"
    )
    startup = str(Path(sitecustomize.__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([path[0], startup, *path[1:]])}
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert startup not in run.stdout
    return run.stdout


def test_a_process_of_spark_imports_pyspark_compiled_where_it_is_installed(installed):
    folder, zipped = installed
    found = started(zipped, folder)
    assert found.startswith(f"{folder}/pyspark/__init__.py ran ")
    assert zipped not in found


def test_a_zip_of_a_pyspark_that_is_not_installed_there_stays(installed):
    folder, zipped = installed
    Path(folder, "sitecustomize.py").unlink()
    assert started(zipped).startswith(f"{zipped}/pyspark/__init__.py None ")
    elsewhere = str(Path(folder, "elsewhere.zip"))
    shutil.copy(zipped, elsewhere)
    assert sitecustomize.without_zips([elsewhere, zipped, folder]) == [elsewhere, folder]
    Path(folder, "pyspark", "__init__.py").unlink()
    assert sitecustomize.without_zips([zipped, folder]) == [zipped, folder]


def test_an_error_of_the_users_sitecustomize_is_reported_as_usual(installed):
    folder, zipped = installed
    Path(folder, "sitecustomize.py").write_text("import nowhere_to_be_found")
    with pytest.raises(AssertionError, match="nowhere_to_be_found"):
        started(zipped, folder)


@pytest.mark.spark
@pytest.mark.slow
def test_workers_of_spark_have_the_drivers_pyspark_and_the_environment_that_was_set(
    spark, monkeypatch
):
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", "/somewhere")
    register(spark)
    register(spark)
    folder = str(Path(sitecustomize.__file__).parent)
    assert spark.sparkContext.environment["PYTHONPATH"] == f"{folder}{os.pathsep}/somewhere"

    def look(batches):
        import pyarrow
        import pyspark

        for _ in batches:
            names = [pyspark.__file__, os.environ["PYTHONPATH"]]
            yield pyarrow.RecordBatch.from_pydict({"name": names})

    rows = spark.range(1).repartition(1).mapInArrow(look, "name string").collect()
    assert rows[0].name == pyspark.__file__
    assert "/somewhere" in rows[1].name


@pytest.mark.slow
def test_a_task_that_reads_does_not_import_pandas(broker):
    topic = "persistent://public/default/read-without-pandas"
    with Client(broker.service_url) as client, client.create_producer(topic) as producer:
        producer.send(b"plain")
        producer.send(b"keyed", partition_key="k", properties={"a": "b"}, event_timestamp=1)
    script = f"""
import sys
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.stream import PulsarStreamReader
given = {{"service.url": {broker.service_url!r}, "topic": {topic!r}}}
options = chosen(given | {{"startingOffsets": "earliest"}}, Mode.READ_STREAM)
reader = PulsarStreamReader(options, Shape.of(default_schema()))
start = reader.initialOffset()
end = reader.latestOffset(start, reader.getDefaultReadLimit())
[task] = reader.partitions(start, end)
assert sum(batch.num_rows for batch in reader.read(task)) == 2
reader.stop()
assert "pyarrow" in sys.modules
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("count", [0, 1, 9])
@pytest.mark.parametrize("kind", ["?", "i1", "i2", "<i4", "i8", "<f4", "f8"])
def test_arrays_are_those_that_pyarrow_makes_with_pandas(count, kind):
    values = (np.arange(2 * count) % 3).astype(kind)[::2]
    present = np.arange(count) % 2 == 0
    wanted = pa.array(values, mask=~present)
    for made, expected in ((vector(values), pa.array(values)), (vector(values, present), wanted)):
        made.validate(full=True)
        assert made.equals(expected)
        assert made.null_count == expected.null_count


@pytest.mark.parametrize("rows", [[], [None], [b"", None, b"ab", b"c"]])
def test_byte_strings_are_those_that_pyarrow_makes_with_pandas(rows):
    made = byte_strings(rows)
    made.validate(full=True)
    assert made.equals(pa.array(rows, pa.binary()))
