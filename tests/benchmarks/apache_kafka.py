"""Apache Kafka: one KRaft process from Maven Central's jars, with an fsync before every receipt.

tests/compat/fetch.py fetches the jars, and keeps them in build/.
"""

import base64
import subprocess
import time
import uuid
from pathlib import Path
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from measured_broker import cpu_s_of

from pybroker.testing.reserved_port import ReservedPort

JARS: Final = Path(__file__).resolve().parents[2] / "build" / "jars" / "kafka"
HOW_TO_GET_THEM: Final = (
    "Apache Kafka's jars are not there: `.venv/bin/python tests/compat/fetch.py java` fetches them "
    "from Maven Central (it needs Java 17)"
)
START_TIMEOUT_S: Final = 60.0
# As kafka-server-start.sh does.
_OPTIONS: Final = ("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:{controller}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:{controller}
log.dirs={folder}/data
log.flush.interval.messages=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


def are_there() -> bool:
    return any(JARS.glob("kafka_2.13-*.jar"))


def java(main: str, *words: str, options: tuple[str, ...] = ("-Xmx256m",)) -> list[str]:
    """The command that runs one of Kafka's programs."""
    return ["java", *options, "-cp", f"{JARS}/*", main, *words]


class ApacheKafka:
    """Its log goes to `folder`/log. Raises RuntimeError if it does not start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reserved = [ReservedPort(), ReservedPort()]
        port, controller = (each.number for each in self._reserved)
        self.kafka_bootstrap = f"localhost:{port}"
        self._settings = folder / "server.properties"
        text = _SETTINGS.format(port=port, controller=controller, folder=folder)
        self._settings.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = str(self._settings)
        words = ("format", "--standalone", "--cluster-id", _cluster_id(), "--config", settings)
        subprocess.run(java("kafka.tools.StorageTool", *words), check=True, capture_output=True)
        with (self._folder / "log").open("wb") as log:
            command = java("kafka.Kafka", settings, options=_OPTIONS)
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()
        return self

    def _wait(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka_bootstrap, "log_level": 0})
        until_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until_s:
            try:
                admin.list_topics(timeout=2)
            except KafkaException:
                continue
            return
        self.__exit__()
        raise RuntimeError(f"Kafka did not start: {(self._folder / 'log').read_text()[-1000:]}")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for port in self._reserved:
            port.release()

    def cpu_s(self) -> float:
        """User and system time of all threads so far."""
        assert self._process is not None
        return cpu_s_of(self._process.pid)


def _cluster_id() -> str:
    """As StorageTool's random-uuid, without another JVM."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
