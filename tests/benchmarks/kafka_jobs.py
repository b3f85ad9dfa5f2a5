"""What Kafka's clients do in the row `kafka`, the same on either server."""

import re
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from apache_kafka import java
from calibration import quantile
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from flood import Publisher, drive
from workload import Spent

from pybroker.kafka.codec.messages import Header, encode_request
from pybroker.kafka.records.batch import build_batch
from pybroker.kafka.records.record import Record, write_records
from pybroker.kafka.records.steps import at_once

PAYLOAD: Final = bytes(100)
PRODUCERS: Final = 8  # of small transactions, at once
CONNECTIONS: Final = 16  # of single messages
WINDOW: Final = 16  # requests of each of them
_PRODUCE: Final = 0
_VERSION: Final = 9
_TIMEOUT_S: Final = 60
_TOOL_TIMEOUT_S: Final = 600
_SENT: Final = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)


class Server(Protocol):
    @property
    def kafka_bootstrap(self) -> str: ...
    def cpu_s(self) -> float: ...


def create(server: Server, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": server.kafka_bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_TIMEOUT_S)
    return topic


def produce(server: Server, topic: str, count: int, payload_bytes: int) -> Spent:
    """kafka-producer-perf-test with its defaults. The seconds are its own, without the JVM's
    start.
    """
    words = ("--topic", topic, "--num-records", str(count), "--record-size", str(payload_bytes))
    words += ("--throughput", "-1", "--bootstrap-server", server.kafka_bootstrap)
    said, cpu_s = _tool(server, "org.apache.kafka.tools.ProducerPerformance", words)
    sent, rate = _SENT.findall(said)[-1]
    assert int(sent) == count, said
    return Spent(count / float(rate), cpu_s)


def consume(server: Server, topic: str, count: int) -> Spent:
    """kafka-consumer-perf-test. The seconds are those of fetching."""
    words = ("--topic", topic, "--num-records", str(count))
    words += ("--bootstrap-server", server.kafka_bootstrap)
    said, cpu_s = _tool(server, "org.apache.kafka.tools.ConsumerPerformance", words)
    names, values = (
        [each.strip() for each in line.split(",")] for line in said.strip().splitlines()[-2:]
    )
    row = dict(zip(names, values, strict=True))
    assert int(row["data.consumed.in.nMsg"]) >= count, said
    return Spent(float(row["fetch.time.ms"]) / 1000, cpu_s)


def _tool(server: Server, main: str, words: tuple[str, ...]) -> tuple[str, float]:
    """What it says, and the server's CPU meanwhile."""
    before = server.cpu_s()
    ended = subprocess.run(
        java(main, *words), capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
    )
    if ended.returncode:
        raise RuntimeError(ended.stdout + ended.stderr)
    return ended.stdout, server.cpu_s() - before


class Transactional:
    """Producers that are initialised once, and used in every run."""

    def __init__(self, server: Server, topic: str) -> None:
        self._server, self._topic = server, topic
        self._producers = [
            Producer(
                {
                    "bootstrap.servers": server.kafka_bootstrap,
                    "transactional.id": f"{topic}-{number}",
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            for number in range(PRODUCERS)
        ]
        for producer in self._producers:
            producer.init_transactions(_TIMEOUT_S)

    def run(self, transactions: int, messages: int) -> Spent:
        """All producers at once; returns when `transactions` are committed."""
        each = transactions // PRODUCERS
        before, started = self._server.cpu_s(), time.perf_counter()
        with ThreadPoolExecutor(PRODUCERS) as threads:
            list(
                threads.map(lambda producer: self._some(producer, each, messages), self._producers)
            )
        return Spent(time.perf_counter() - started, self._server.cpu_s() - before)

    def _some(self, producer: Producer, count: int, messages: int) -> None:
        for _ in range(count):
            producer.begin_transaction()
            for _ in range(messages):
                producer.produce(self._topic, PAYLOAD)
            producer.commit_transaction(_TIMEOUT_S)

    def lone_commit_ms(self, count: int) -> float:
        """The median of a commit alone: the message is durable before."""
        producer, taken = self._producers[0], []
        for _ in range(count):
            producer.begin_transaction()
            producer.produce(self._topic, PAYLOAD)
            producer.flush(_TIMEOUT_S)
            started = time.perf_counter()
            producer.commit_transaction(_TIMEOUT_S)
            taken.append(1000 * (time.perf_counter() - started))
        return quantile(sorted(taken), 0.5)


def single_messages(server: Server, topic: str, count: int) -> Spent:
    """A request for each message, on several connections; `count` is a multiple of CONNECTIONS.
    Raises RuntimeError if not all messages are stored.
    """
    frame = _frame(topic)
    before = server.cpu_s()
    pumps = [_publisher(server, frame, count // CONNECTIONS) for _ in range(CONNECTIONS)]
    seconds = drive(pumps)
    spent = Spent(seconds, server.cpu_s() - before)
    for pump in pumps:
        pump.connection.socket.close()
    if (stored := _end_offset(server, topic)) != count + CONNECTIONS:
        raise RuntimeError(f"{stored} of {count + CONNECTIONS} messages are stored")
    return spent


class _Connection:
    def __init__(self, server: Server) -> None:
        host, _, port = server.kafka_bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _EqualFrames:
    """Counts receipts, all of one size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest = 0

    def feed(self, chunk: bytes) -> int:
        whole, self._rest = divmod(self._rest + len(chunk), self._size)
        return whole


def _publisher(server: Server, frame: bytes, count: int) -> Publisher:
    connection = _Connection(server)
    connection.socket.sendall(frame)  # the first one tells the size of receipts
    size = _receive_frame(connection.socket)
    receipts = _EqualFrames(size)
    return Publisher(connection, frame * 1000, len(frame), count, WINDOW, receipts)


def _receive_frame(connection: socket.socket) -> int:
    size = 4 + int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    connection.recv(size - 4, socket.MSG_WAITALL)
    return size


def _frame(topic: str) -> bytes:
    records = at_once(write_records([Record(0, 0, None, PAYLOAD)]))
    batch = build_batch(records, 1, 0, base_timestamp=1, max_timestamp=1)
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    body = {"acks": -1, "timeout_ms": 30_000, "topic_data": data}
    request = encode_request(Header(_PRODUCE, _VERSION, 1, "bench"), body)
    return len(request).to_bytes(4, "big") + request


def _end_offset(server: Server, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": server.kafka_bootstrap, "group.id": "bench"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), _TIMEOUT_S)
    consumer.close()
    return int(end)
