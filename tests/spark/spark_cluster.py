"""Spark standalone from the pip package: a master and two workers, as processes that tests can
kill.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Final, Self

import pyspark

SPARK_HOME: Final = Path(pyspark.__file__).parent
_START_S: Final = 120.0


class Cluster:
    """Writes logs to `folder`."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.url = ""
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """The process ids of the master and the workers; executors are children of the workers."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        master = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
        self.url = self._await(master, re.compile(r"Starting Spark master at (spark://\S+)"))
        for number in range(self._workers):
            where = ["--work-dir", str(self._folder / f"work-{number}"), "--webui-port", "0"]
            size = ["--cores", "1", "--memory", "1g"]
            name = f"worker-{number}"
            log = self._start(name, "worker.Worker", "--host", "127.0.0.1", *size, *where, self.url)
            self._await(log, re.compile(r"(Successfully registered) with master"))
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait()

    def _start(self, name: str, kind: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
        if kind.startswith("master"):
            arguments = (*arguments, "--webui-port", "0")
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments], stdout=output, stderr=output, env=environment
                )
            )
        return log

    def _await(self, log: Path, wanted: re.Pattern[str]) -> str:
        give_up_at = time.monotonic() + _START_S
        while time.monotonic() < give_up_at:
            if found := wanted.search(log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.2)
        raise RuntimeError(f"{log}: {log.read_text()[-2000:]}")
