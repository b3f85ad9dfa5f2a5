"""A broker in its own process, on a fixed port, so that a test can kill and restart it.

`with pybroker.testing.broker()` is faster. Use this class for kill -9, for restarts, and to measure
CPU and memory without those of the client.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, Self

from pybroker.testing.reserved_port import ReservedPort

_READY: Final = re.compile(r"pybroker ready (pulsar://[^ ]*:(\d+))(?: (http://[^ ]*:(\d+)))?")
_STOP_TIMEOUT_S: Final = 30.0


class BrokerProcess:
    """`pybroker standalone` on `data_dir`, on free ports that stay reserved until `__exit__`.

    It logs to `log`, or to this process's stderr.
    """

    def __init__(
        self,
        data_dir: Path,
        arguments: Sequence[str] = (),
        log: IO[bytes] | None = None,
        kafka: bool = False,
    ) -> None:
        """With `kafka` it serves Kafka's clients, too, at its `kafka_bootstrap`."""
        self.service_url = ""
        self.admin_url = ""
        self.kafka_bootstrap = ""
        self.program = [sys.executable, "-m", "pybroker"]
        self._data_dir = data_dir
        self._arguments = list(arguments)
        self._log = log
        self._reserved = [ReservedPort(), ReservedPort()]
        self._port, self._http_port = (str(port.number) for port in self._reserved)
        if kafka:
            self._reserved.append(ReservedPort())
            number = self._reserved[-1].number
            self._arguments += ["--kafka-port", str(number)]
            self.kafka_bootstrap = f"localhost:{number}"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for port in self._reserved:
            port.release()

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        """Returns when the broker is ready. Raises RuntimeError if it exits before; its log has the
        reason.
        """
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """The first half of `start`; returns at once."""
        ports = ["--port", self._port, "--http-port", self._http_port]
        options = [*ports, *self._arguments, "--data-dir", str(self._data_dir)]
        self._process = subprocess.Popen(
            [*self.program, "standalone", *options],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def wait_until_ready(self) -> None:
        """The second half of `start`."""
        process = self._running()
        assert process.stdout is not None
        ready = _READY.match(process.stdout.readline())
        if ready is None:
            raise RuntimeError(f"The broker ended with code {process.wait()} before it was ready")
        self.service_url, self._port = ready[1], ready[2]
        self.admin_url, self._http_port = ready[3] or "", ready[4] or self._http_port

    def wait_until_ended(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Returns the exit code when the process has ended, such as at a fault point. Raises
        TimeoutError.
        """
        try:
            return self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"The broker did not end within {timeout_s:g} s") from None

    def kill(self) -> None:
        """Sends SIGKILL; clients see the same as after a power cut. Idempotent."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL if the broker does not end within 30 s. Idempotent."""
        self._end(signal.SIGTERM)

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise RuntimeError("The broker is not running; call start()")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
