"""Rows of scalable topics: what a segment costs, and how long a split makes producers wait."""

import itertools
import select
import threading
import time
import urllib.request
from collections import deque
from dataclasses import dataclass, field

from figures import Figure, Target
from flood import build_batch
from idle_topics import AT_ONCE
from measured_broker import MeasuredBroker
from raw_connection import RECEIVE_BYTES, RawConnection, Type, whole_commands
from workload import Bench, Load, Spent, measured, new_topic, publish

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

SEGMENTS = 1000
MESSAGES_A_SECOND = 200_000
IN_A_BATCH = 1000
BEFORE_S, AFTER_S = 2.0, 1.0
SPLITS = 4
_NAMESPACE = "public/default"
_numbers = itertools.count()


def ask(broker: MeasuredBroker, method: str, path: str, body: bytes = b"") -> None:
    headers = {"Content-Type": "application/json"}
    url = f"{broker.admin_url}/admin/v2/{path}"
    request = urllib.request.Request(url, body or None, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 204, answer.status


def scalable(broker: MeasuredBroker, segments: int) -> str:
    local = f"scalable-{next(_numbers)}"
    ask(broker, "PUT", f"scalable/{_NAMESPACE}/{local}?numInitialSegments={segments}")
    return local


def partitioned(broker: MeasuredBroker, partitions: int) -> str:
    local = f"partitioned-{next(_numbers)}"
    path = f"persistent/{_NAMESPACE}/{local}/partitions"
    ask(broker, "PUT", path, str(partitions).encode())
    return local


def segments_of(local: str, count: int) -> list[str]:
    width, last = 65_536 // count, 65_535
    ranges = [
        (at * width, last if at == count - 1 else (at + 1) * width - 1) for at in range(count)
    ]
    return [
        f"segment://{_NAMESPACE}/{local}/{low:04x}-{high:04x}-{at}"
        for at, (low, high) in enumerate(ranges)
    ]


def partitions_of(local: str, count: int) -> list[str]:
    return [f"persistent://{_NAMESPACE}/{local}-partition-{at}" for at in range(count)]


def cost_of_segments(bench: Bench) -> list[Figure]:
    """A segment costs what a partition costs."""
    return _publishing(bench) + _many(bench)


def _publishing(bench: Bench) -> list[Figure]:
    """In the order segment, partition, partition, segment: a topic costs more after another."""
    load = Load(bench.scaled(250_000), 1, 100, window=10_000)
    cpu: dict[str, list[float]] = {"segment": [], "partition": []}
    with bench.broker("segment") as broker:
        publish(broker, new_topic(), load)  # the first one of a broker costs more
        for _ in range(bench.runs):
            found: dict[str, list[float]] = {"segment": [], "partition": []}
            for kind in ("segment", "partition", "partition", "segment"):
                found[kind].append(publish(broker, _new(broker, kind), load).cpu_us(load.entries))
            for kind, each in found.items():
                cpu[kind].append(sum(each) / len(each))
    ratios = [one / other for one, other in zip(cpu["segment"], cpu["partition"], strict=True)]
    return [
        Figure("publish 100 B to a segment: broker CPU", "µs/e", cpu["segment"]),
        Figure("publish 100 B to a partition: broker CPU", "µs/e", cpu["partition"]),
        Figure("publish 100 B: segment to partition", "", ratios, Target(1.1)),
    ]


def _new(broker: MeasuredBroker, kind: str) -> str:
    if kind == "segment":
        return segments_of(scalable(broker, 1), 1)[0]
    return partitions_of(partitioned(broker, 1), 1)[0]


def _many(bench: Bench) -> list[Figure]:
    cpu: dict[str, list[float]] = {"segments": [], "partitions": []}
    memory: dict[str, list[float]] = {"segments": [], "partitions": []}
    layout = []
    for _ in range(bench.runs):
        with bench.broker("segments") as broker:
            local = scalable(broker, SEGMENTS)
            layout.append(1000 * _lookup_s(broker, f"topic://{_NAMESPACE}/{local}"))
            _subscribe(broker, segments_of(local, SEGMENTS), cpu["segments"], memory["segments"])
        with bench.broker("partitions") as broker:
            names = partitions_of(partitioned(broker, SEGMENTS), SEGMENTS)
            _subscribe(broker, names, cpu["partitions"], memory["partitions"])
    cpu_ratios = [
        one / other for one, other in zip(cpu["segments"], cpu["partitions"], strict=True)
    ]
    figures = [Figure(f"{SEGMENTS:,} segments: a client learns them all", "ms", layout)]
    for kind in cpu:
        name = f"{SEGMENTS:,} {kind}: subscribing to one"
        figures.append(Figure(f"{name}, broker CPU", "µs", cpu[kind]))
        figures.append(Figure(f"{name}, memory", "kB", memory[kind]))
    ratio = f"{SEGMENTS:,}: a segment to a partition, broker CPU"
    return [*figures, Figure(ratio, "", cpu_ratios, Target(1.1))]


def _lookup_s(broker: MeasuredBroker, topic: str) -> float:
    connection, started_s = RawConnection(broker.port), time.perf_counter()
    assert len(_layout(connection, topic).segments) == SEGMENTS
    took_s = time.perf_counter() - started_s
    connection.close()
    return took_s


def _layout(connection: RawConnection, topic: str) -> pb.ScalableTopicDAG:
    asked = pb.CommandScalableTopicLookup(session_id=1, topic=topic)
    connection.send(pb.BaseCommand(type=Type.SCALABLE_TOPIC_LOOKUP, scalableTopicLookup=asked))
    update = connection.wait_for(Type.SCALABLE_TOPIC_UPDATE).scalableTopicUpdate
    assert not update.HasField("error"), update
    return update.dag


def _subscribe(
    broker: MeasuredBroker, topics: list[str], cpu: list[float], memory: list[float]
) -> None:
    before_mb = broker.resident_mb()
    spent: Spent = measured(broker, lambda: _subscribe_to_all(broker, topics))
    cpu.append(spent.cpu_us(len(topics)))
    memory.append(1024 * (broker.resident_mb() - before_mb) / len(topics))


def _subscribe_to_all(broker: MeasuredBroker, topics: list[str]) -> None:
    for start in range(0, len(topics), AT_ONCE):
        connection = RawConnection(broker.port)
        for number, topic in enumerate(topics[start : start + AT_ONCE]):
            asked = pb.CommandSubscribe(
                topic=topic,
                subscription="subscription",
                subType=pb.CommandSubscribe.Exclusive,
                consumer_id=number,
                request_id=number,
            )
            connection.send(pb.BaseCommand(type=Type.SUBSCRIBE, subscribe=asked))
        for _ in topics[start : start + AT_ONCE]:
            connection.wait_for(Type.SUCCESS)
        connection.close()


# -- a split under load


@dataclass(slots=True)
class _Waits:
    """How long batches waited for their receipts, from when they were due."""

    before_s: list[float] = field(default_factory=list)
    at_a_split_s: list[float] = field(default_factory=list)


class _PacedProducer:
    """Publishes to the active segments in turn, at a constant rate, and follows the layouts as the
    SDK does: new segments wait until those that they replace have answered everything.
    """

    def __init__(self, broker: MeasuredBroker, topic: str) -> None:
        self._watch, self._connection = RawConnection(broker.port), RawConnection(broker.port)
        self._topic, self._unparsed = topic, {self._watch: b"", self._connection: b""}
        self._entry = build_batch(IN_A_BATCH, 100)
        self._open: set[int] = set()
        self._active: list[int] = []
        self._sealed: set[int] = set()
        self._requests: dict[int, int] = {}  # segments that are being opened
        self._unanswered: dict[tuple[int, int], float] = {}
        self._due: deque[float] = deque()
        self._numbers = itertools.count()
        self.waits = _Waits()
        self.splits_s: list[float] = []
        self._follow(_layout(self._watch, topic))
        while self._requests:
            self._handle(self._connection, self._connection.receive()[0])

    def run(self, until: threading.Event) -> None:
        interval_s = IN_A_BATCH / MESSAGES_A_SECOND
        next_s = time.perf_counter()
        sockets = {each.socket: each for each in self._unparsed}
        while not until.is_set() or self._unanswered:
            now_s = time.perf_counter()
            while next_s <= now_s and not until.is_set():
                self._due.append(next_s)
                next_s += interval_s
            self._send()
            wait_s = max(0.0, min(0.05, next_s - time.perf_counter()))
            for found in select.select(list(sockets), [], [], wait_s)[0]:
                self._receive(sockets[found])

    def _send(self) -> None:
        while self._due and self._is_ready:
            segment = self._active[next(self._numbers) % len(self._active)]
            number = next(self._numbers)
            send = pb.CommandSend(producer_id=segment, sequence_id=number, num_messages=IN_A_BATCH)
            self._unanswered[segment, number] = self._due.popleft()
            command = pb.BaseCommand(type=Type.SEND, send=send)
            self._connection.socket.sendall(encode_frame(command, self._entry))

    @property
    def _is_ready(self) -> bool:
        answered = not any(segment in self._sealed for segment, _ in self._unanswered)
        return answered and not self._requests

    def _receive(self, connection: RawConnection) -> None:
        data = self._unparsed[connection] + connection.socket.recv(RECEIVE_BYTES)
        commands, self._unparsed[connection] = whole_commands(data)
        for command in commands:
            self._handle(connection, command)

    def _handle(self, connection: RawConnection, command: pb.BaseCommand) -> None:
        if command.type == Type.SEND_RECEIPT:
            found = command.send_receipt
            self._answered(self._unanswered.pop((found.producer_id, found.sequence_id)))
        elif command.type == Type.SCALABLE_TOPIC_UPDATE:
            self._follow(command.scalableTopicUpdate.dag)
        elif command.type == Type.PRODUCER_SUCCESS:
            self._open.add(self._requests.pop(command.producer_success.request_id))
        elif command.type == Type.PING:
            connection.send(pb.BaseCommand(type=Type.PONG, pong=pb.CommandPong()))
        elif command.type in (Type.SEND_ERROR, Type.ERROR):
            raise RuntimeError(str(command))
        self._leave()

    def _answered(self, due_s: float) -> None:
        now_s = time.perf_counter()
        amid = any(due_s <= at + AFTER_S and now_s >= at for at in self.splits_s)
        (self.waits.at_a_split_s if amid else self.waits.before_s).append(now_s - due_s)

    def _follow(self, dag: pb.ScalableTopicDAG) -> None:
        self._active = [each.segment_id for each in dag.segments if each.state == pb.ACTIVE]
        self._sealed = {each.segment_id for each in dag.segments if each.state == pb.SEALED}
        for each in dag.segments:
            if each.state == pb.ACTIVE and each.segment_id not in self._open:
                request_id = self._connection.next_request_id()
                self._requests[request_id] = each.segment_id
                span = f"{each.hash_start:04x}-{each.hash_end:04x}-{each.segment_id}"
                asked = pb.CommandProducer(
                    topic=f"{self._topic.replace('topic', 'segment', 1)}/{span}",
                    producer_id=each.segment_id,
                    request_id=request_id,
                )
                self._connection.send(pb.BaseCommand(type=Type.PRODUCER, producer=asked))

    def _leave(self) -> None:
        """Sealed segments that have answered everything."""
        busy = {segment for segment, _ in self._unanswered}
        for segment in self._open.difference(self._active, busy):
            self._open.discard(segment)
            request_id = self._connection.next_request_id()
            asked = pb.CommandCloseProducer(producer_id=segment, request_id=request_id)
            command = pb.BaseCommand(type=Type.CLOSE_PRODUCER, close_producer=asked)
            self._connection.send(command)

    def close(self) -> None:
        self._watch.close()
        self._connection.close()


def split_under_load(bench: Bench) -> list[Figure]:
    """Four splits of a topic that 200,000 messages of 100 B a second are published to."""
    return [figure for count in (1, SEGMENTS) for figure in _splits(bench, count)]


def _splits(bench: Bench, segments: int) -> list[Figure]:
    waits, usual = [], []
    with bench.broker("split") as broker:
        for _ in range(bench.runs):
            found = _split_while_publishing(broker, segments)
            waits.append(1000 * max(found.at_a_split_s))
            usual.append(1000 * max(found.before_s))
    name = f"{MESSAGES_A_SECOND:,} messages/s of 100 B, {segments:,} segments"
    return [
        Figure(f"{name}, {SPLITS} splits: longest wait", "ms", waits, Target(50)),
        Figure(f"{name}, no split: longest wait", "ms", usual),
    ]


def _split_while_publishing(broker: MeasuredBroker, segments: int) -> _Waits:
    local, over = scalable(broker, segments), threading.Event()
    producer = _PacedProducer(broker, f"topic://{_NAMESPACE}/{local}")

    def split() -> None:
        try:
            for number in (0, 1, 2, 3)[:SPLITS]:
                time.sleep(BEFORE_S)
                producer.splits_s.append(time.perf_counter())
                ask(broker, "POST", f"scalable/{_NAMESPACE}/{local}/split/{number}")
            time.sleep(AFTER_S)
        finally:
            over.set()

    splitting = threading.Thread(target=split)
    splitting.start()
    producer.run(over)
    splitting.join()
    producer.close()
    return producer.waits
