"""Processes of `pybroker broker` on real bookies, started as in docs/cluster.md."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from documents import ROOT, blocks

SESSION_MS: Final = 4000
END_S: Final = 60
_CONF, _COMMAND = (
    block.text
    for block in blocks(ROOT / "docs/cluster.md")
    if "test_broker_processes" in block.declared
)


class BrokerProcess:
    def __init__(
        self, folder: Path, name: str, zookeeper: str, more: Mapping[str, object] | None = None
    ) -> None:
        """`more`: settings in addition to those of the document."""
        self.log = folder / f"{name}.log"
        conf = folder / f"{name}.conf"
        settings = {
            "metadataStoreUrl": f"zk:{zookeeper}",
            "metadataStoreSessionTimeoutMillis": SESSION_MS,
            "advertisedAddress": "127.0.0.1",
            **(more or {}),
        }
        kept = [line for line in _CONF.splitlines() if line.partition("=")[0] not in settings]
        conf.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in settings.items())]))
        words = _COMMAND.split()
        assert words[:4] == ["pybroker", "broker", "--config", "broker.conf"], words
        self._command = [sys.executable, "-m", *words[:3], str(conf), *words[4:]]
        self.service_url = self.admin_url = ""
        self.kafka_bootstrap = ""  # if it serves Kafka's clients
        self.start()

    def start(self, port: int = 0, http_port: int = 0) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, "--port", str(port), "--http-port", str(http_port)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready.startswith("pybroker ready "), self.log.read_text()
        self.service_url, self.admin_url, *more = ready.split()[2:]
        told = (each.removeprefix("kafka://") for each in more if each.startswith("kafka://"))
        self.kafka_bootstrap = next(told, "")

    def kill(self) -> None:
        """kill -9; the process has ended when this returns."""
        self.process.kill()
        self.process.communicate(timeout=END_S)

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.ended()

    def ended(self) -> int:
        self.process.communicate(timeout=END_S)
        return self.process.returncode

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def wait_until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_S
    while not fact():
        assert time.monotonic() < deadline, "it did not come true"
        signal.sigtimedwait([], 0.05)
