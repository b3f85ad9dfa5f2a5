"""Kafka Connect with its connectors for files: a worker, until it is killed."""

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from killed_jobs import until_killed
from official_kafka import connect_jars

READY_WITHIN_S: Final = 120.0
_LOOKS_EVERY_S: Final = 0.2
_ADDS_EVERY_S: Final = 0.01
_STRINGS: Final = "org.apache.kafka.connect.storage.StringConverter"
_COMMON: Final = {
    "key.converter": _STRINGS,
    "value.converter": _STRINGS,
    "offset.flush.interval.ms": "500",
    "plugin.discovery": "service_load",
    # Of all its clients, so that a killed one is missed soon.
    "consumer.session.timeout.ms": "6000",
    "consumer.heartbeat.interval.ms": "1000",
}
_DISTRIBUTED: Final = {
    "group.id": "connect",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "exactly.once.source.support": "enabled",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
}
Settings = Mapping[str, str]


def source(name: str, file: Path, topic: str) -> dict[str, str]:
    """A FileStreamSource. All lines that are there are a batch: what is beyond its limit would wait
    until the next line comes.
    """
    return {
        "name": name,
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(file),
        "topic": topic,
    }


def sink(name: str, file: Path, topic: str) -> dict[str, str]:
    """A FileStreamSink."""
    return {
        "name": name,
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "tasks.max": "1",
        "file": str(file),
        "topics": topic,
        "consumer.override.auto.offset.reset": "earliest",
    }


@contextmanager
def standalone(bootstrap: str, folder: Path, *connectors: Settings) -> Iterator[None]:
    """A worker that keeps its sources' offsets in `folder`."""
    own = {"offset.storage.file.filename": str(folder / "offsets"), "listeners": "HTTP://:0"}
    files = [_written(folder / f"{each['name']}.properties", each) for each in connectors]
    with _worker("ConnectStandalone", bootstrap, folder, own, *files):
        yield


@contextmanager
def distributed(bootstrap: str, folder: Path, port: int) -> Iterator[None]:
    """A worker that keeps everything in topics; begins when it answers on `port`."""
    own = _DISTRIBUTED | {"listeners": f"HTTP://127.0.0.1:{port}"}
    with _worker("ConnectDistributed", bootstrap, folder, own):
        ask(port, "connectors")
        yield


@contextmanager
def _worker(
    program: str, bootstrap: str, folder: Path, own: Settings, *files: Path
) -> Iterator[None]:
    settings = {**_COMMON, "bootstrap.servers": bootstrap, **own}
    config = _written(folder / "worker.properties", settings)
    classpath = ":".join(map(str, connect_jars()))
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", classpath, f"org.apache.kafka.connect.cli.{program}", str(config)]
    with until_killed([*command, *map(str, files)], os.environ, folder / "worker.log"):
        yield


def _written(path: Path, settings: Settings) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def ask(port: int, path: str, body: Settings | None = None) -> Any:
    """The answer of a worker's REST interface, as soon as it serves: with a body it is a PUT."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}",
        data,
        {"Content-Type": "application/json"},
        method="GET" if body is None else "PUT",
    )
    until_s = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=READY_WITHIN_S) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):  # not yet, or while it rebalances
            if time.monotonic() > until_s:
                raise
            time.sleep(_LOOKS_EVERY_S)


def wait_for_lines(file: Path, count: int) -> list[str]:
    """The lines of a file once there are `count` different ones."""
    until_s = time.monotonic() + READY_WITHIN_S
    while True:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(set(lines)) >= count:
            return lines
        assert time.monotonic() < until_s, f"{len(set(lines))} of {count} lines came"
        time.sleep(_LOOKS_EVERY_S)


class Trickle:
    """Adds numbered lines to a file, a few at a time, so that a source is always at work."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        with self._file.open("a") as file:
            while not self._over.wait(_ADDS_EVERY_S):
                line = f"line {len(self._lines)}"
                file.write(f"{line}\n")
                file.flush()
                self._lines.append(line)

    def end(self) -> list[str]:
        """All lines."""
        self._over.set()
        self._thread.join()
        return self._lines
