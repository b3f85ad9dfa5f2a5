"""A row of many slow clients: the cost of a message when nearly every message comes alone."""

import selectors
import time
from collections import deque

from calibration import fdatasync_ms, quantile
from figures import Figure, Target
from flood import build_batch, send_frames
from measured_broker import MeasuredBroker
from raw_connection import RECEIVE_BYTES, FrameCounter, RawConnection, Type
from workload import Bench, new_topic

CLIENTS = 400
TOPICS = 20
PER_CLIENT_PER_S = 10
SECONDS = 6
SYNCS = 100


class SlowClient:
    """Sends one message at a time and records the time."""

    def __init__(self, broker: MeasuredBroker, topic: str, frame: bytes) -> None:
        self.connection = RawConnection(broker.port)
        self.connection.create_producer(topic)
        self.socket = self.connection.socket
        self._frame = frame
        self._sent_s: deque[float] = deque()
        self._receipts = FrameCounter(Type.SEND_RECEIPT)

    def send(self) -> None:
        self._sent_s.append(time.perf_counter())
        self.socket.sendall(self._frame)

    def received(self) -> list[float]:
        """The milliseconds until the receipt of each confirmed message."""
        count = self._receipts.feed(self.socket.recv(RECEIVE_BYTES))
        now_s = time.perf_counter()
        return [(now_s - self._sent_s.popleft()) * 1000 for _ in range(count)]


def slow_clients(bench: Bench) -> list[Figure]:
    costs, p99s, syncs = [], [], []
    per_client = max(10, int(PER_CLIENT_PER_S * SECONDS * bench.scale))
    with bench.broker("clients", "brokerMaxConnectionsPerIp=0") as broker:
        for _ in range(bench.runs):
            clients = connect(broker)
            cpu_before_s = broker.cpu_s()
            taken = trickle(clients, per_client)
            costs.append((broker.cpu_s() - cpu_before_s) * 1e6 / len(taken))
            syncs.append(quantile(sorted(fdatasync_ms(bench.folder, SYNCS)), 0.99))
            p99s.append(quantile(sorted(taken), 0.99))
            for client in clients:
                client.connection.close()
    name = f"{CLIENTS} clients, {PER_CLIENT_PER_S} messages a second each"
    beyond = [max(0.0, p99 - sync) for p99, sync in zip(p99s, syncs, strict=True)]
    return [
        Figure(f"{name}: broker CPU", "µs/e", costs, Target(60, 40)),
        Figure(f"{name}: p99", "ms", p99s),
        Figure(f"{name}: p99 beyond fdatasync's", "ms", beyond, Target(5, 2)),
    ]


def connect(broker: MeasuredBroker) -> list[SlowClient]:
    topics = [new_topic() for _ in range(TOPICS)]
    frame = send_frames(build_batch(1, 100), 1, 1)
    return [SlowClient(broker, topics[number % TOPICS], frame) for number in range(CLIENTS)]


def trickle(clients: list[SlowClient], per_client: int) -> list[float]:
    """All clients send in turn, evenly; returns the milliseconds from each send to its receipt."""
    count, sent = len(clients) * per_client, 0
    taken: list[float] = []
    with selectors.EpollSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        started_s = time.perf_counter()
        while len(taken) < count:
            due_s = started_s + sent / (len(clients) * PER_CLIENT_PER_S)
            wait_s = due_s - time.perf_counter() if sent < count else 5.0
            if sent < count and wait_s <= 0:
                clients[sent % len(clients)].send()
                sent += 1
            for key, _ in selector.select(max(0.0, wait_s)):
                taken += key.data.received()
    return taken
