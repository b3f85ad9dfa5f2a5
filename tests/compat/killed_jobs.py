"""A job that is killed with all its processes, and what it wrote to a Kafka topic."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer

_SOON_S: Final = 240.0
_QUIET_S: Final = 5.0


@contextmanager
def until_killed(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Iterator[None]:
    """The job runs within the block; it must not end by itself."""
    with log.open("a") as out:
        process = subprocess.Popen(
            command, env=dict(environ), stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Written:
    """The committed records of a topic, as far as they have been read: (key, value) in order."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"group.id": "judge", "auto.offset.reset": "earliest"}
        self._consumer = Consumer({"bootstrap.servers": bootstrap} | settings)
        self._consumer.subscribe([topic])
        self.records: list[tuple[bytes | None, bytes]] = []

    def read(self, count: int) -> None:
        """Read until there are `count` different ones."""
        while len(set(self.records)) < count:
            record = self._consumer.poll(_SOON_S)
            assert record is not None, f"{len(set(self.records))} of {count} records came"
            self._take(record)

    def read_to_the_end(self) -> list[tuple[bytes | None, bytes]]:
        """Returns all, when no more come; closes."""
        while (record := self._consumer.poll(_QUIET_S)) is not None:
            self._take(record)
        self._consumer.close()
        return self.records

    def _take(self, record: Any) -> None:
        assert record.error() is None, record.error()
        self.records.append((record.key(), record.value()))
