"""The processes that the demo starts, kills and restarts: the broker and Spark drivers.

Every kill is SIGKILL: nothing is flushed, nothing is closed. A thread watches the broker and
restarts it on the same port and data directory, as a service manager would. A driver's whole
process group dies at once, including the JVM and the Python workers.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pybroker.demo.report import say
from pybroker.testing.broker_process import BrokerProcess


def log_of_broker(directory: Path) -> Path:
    return directory / "broker.log"


class Broker:
    """`pybroker standalone` with a supervisor that restarts it. `kills` counts the restarts."""

    def __init__(self, directory: Path) -> None:
        self.pid_file = directory / "broker.pid"
        self.kills = 0
        self._stopping = False
        self._log = log_of_broker(directory).open("ab")
        self._process = BrokerProcess(directory / "data", log=self._log)
        self._start()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()

    @property
    def service_url(self) -> str:
        return self._process.service_url

    @property
    def admin_url(self) -> str:
        return self._process.admin_url

    def _start(self) -> None:
        self._process.start()
        self.pid_file.write_text(str(self._process.pid))

    def _supervise(self) -> None:
        while True:
            # Waits for the broker's death but leaves the exit status to BrokerProcess.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            if self._stopping:
                return
            died_at = time.monotonic()
            self._process.kill()
            self._start()
            self.kills += 1
            say(f"broker was killed (-9) and back after {time.monotonic() - died_at:.1f} s")

    def stop(self) -> None:
        self._stopping = True
        os.kill(self._process.pid, signal.SIGTERM)
        self._supervisor.join()
        self._process.stop()
        self._log.close()


class DriverFailed(Exception):
    """A driver exited by itself, with an error, or did not end. `log` is where it wrote."""

    def __init__(self, text: str, log: Path) -> None:
        super().__init__(text)
        self.log = log


class Driver:
    """A Spark driver (a module that takes its settings as JSON) in its own process group."""

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
        """Returns the exit code, -9 after a kill. Raises DriverFailed if the driver does not exit
        in time.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DriverFailed(
                f"a driver did not end within {timeout_s:.0f} s", self._log
            ) from None

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
