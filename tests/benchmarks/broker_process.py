"""A broker in a process of its own, so that its CPU and memory are read apart from the load's."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_READY = re.compile(r"pybroker ready pulsar://[^ ]*:(\d+) ")
STOP_TIMEOUT_S = 30


class BrokerProcess:
    """`pybroker standalone` on free ports over one data directory; start again after stop."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "BrokerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it accepts connections."""
        arguments = ["standalone", "--port", "0", "--http-port", "0"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pybroker", *arguments, "--data-dir", str(self.data_dir)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if ready := _READY.search(line):
                self.port = int(ready[1])
                return
        raise RuntimeError(f"The broker ended with code {self._process.wait()} before it served")

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def cpu_s(self) -> float:
        """User and system time of all its threads so far."""
        # The command's name, in brackets, may hold blanks: count the fields behind it.
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / _TICKS_PER_S

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024
