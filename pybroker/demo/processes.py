"""The processes that the demo starts, kills and starts again: the broker and Spark drivers.

Every kill is SIGKILL: nothing is flushed, nothing says goodbye. The broker is watched by a thread
that brings it back on the same port and data directory, as a service manager would; a driver's
whole process group dies at once, JVM and Python workers included.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybroker.demo.report import say

_READY = re.compile(r"pybroker ready (pulsar://\S+) (http://\S+)")
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0


class Broker:
    """`pybroker standalone` with a supervisor. `kills` counts how often it came back."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = (directory / "broker.log").open("ab")
        self._ports = ("0", "0")
        self._stopping = False
        self.pid_file = directory / "broker.pid"
        self.service_url = ""
        self.http_url = ""
        self.kills = 0
        self._process = self._start()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    def _start(self) -> subprocess.Popen[bytes]:
        port, http_port = self._ports
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pybroker", "standalone", "--bind", "127.0.0.1"),
                *("--port", port, "--http-port", http_port),
                *("--data-dir", str(self._directory / "data")),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._wait_until_ready(process)
        self.pid_file.write_text(str(process.pid))
        return process

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._log.write(line)
            if found := _READY.search(line.decode()):
                self.service_url, self.http_url = found.groups()
                self._ports = (_port(self.service_url), _port(self.http_url))
                return
        raise RuntimeError(f"The broker did not start: see {self._log.name}")

    def _supervise(self) -> None:
        while True:
            self._process.wait()
            if self._stopping:
                return
            self.kills += 1
            killed_at = time.monotonic()
            self._process = self._start()
            say(f"broker was killed (-9), is back after {time.monotonic() - killed_at:.1f} s")

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> int:
        """SIGTERM; returns the exit code, -9 if it had to be killed."""
        self._stopping = True
        self._process.terminate()
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._log.close()


def _port(url: str) -> str:
    return url.rsplit(":", 1)[1].rstrip("/")


class Driver:
    """A Spark driver (a module that takes its settings as JSON) in a process group of its own."""

    def __init__(
        self, settings: Mapping[str, Any], log: Path, module: str = "pybroker.demo.driver"
    ) -> None:
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._log = log

    def wait(self, timeout_s: float) -> int:
        """The exit code; -9 after a kill. Raises RuntimeError if it is not done in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(
                f"A driver did not end within {timeout_s:.0f} s: see {self._log}"
            ) from None

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
