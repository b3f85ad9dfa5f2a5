"""The pulsar-spark connector, for comparison: in the JVM alone, with its own Spark.

Its newest version on Maven Central runs with Spark 3.4, so it needs its own Python environment and
JVM. They are fetched once; tests/compat/test_spark_connector.py uses the same.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SPARK: Final = ("pyspark==3.4.4", "setuptools<81")
_END_S: Final = 60


class Connector:
    """A job in a child process, so that its CPU counts as that of this process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._answer("ready")

    def as_batch(self) -> None:
        self._run("read")

    def as_stream(self) -> None:
        self._run("stream")

    def _run(self, what: str) -> None:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        self._answer("done")

    def _answer(self, wanted: str) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != wanted:
            raise RuntimeError(f"The connector's job said {answer!r} instead of {wanted!r}")


@contextmanager
def connector(folder: Path, options: Mapping[str, str]) -> Iterator[Connector]:
    """Start the connector's job. Raises an error if it could not be fetched."""
    for shared in ("support", "compat"):
        sys.path.append(str(ROOT / shared))
    from environments import environment
    from official_java import jars_of

    python = environment("connector", SPARK)
    jars = ",".join(map(str, jars_of(ROOT / "compat/java/connector/pom.xml", "connector")))
    job = Path(__file__).with_name("spark_connector_job.py")
    command: list[Any] = [python, job, jars, folder, json.dumps(dict(options))]
    environ = {**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, **pipes) as process:
        try:
            yield Connector(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_END_S)
        finally:
            process.kill()
