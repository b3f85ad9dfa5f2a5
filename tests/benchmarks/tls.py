"""Rows of TLS and plain connections: the same load on both ports of one broker, and its CPU.

One connection sends a window of entries at a time. The broker's CPU is compared; the difference is
TLS. Rates are those of a load that waits for each window.
"""

import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

from figures import Figure
from flood import build_batch, send_frames
from measured_broker import MeasuredBroker
from raw_connection import RECEIVE_BYTES, FrameCounter, RawConnection, Type
from workload import Bench, Spent, measured, new_topic

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from certificates import Authority

WINDOW = 1000
SIZES = ((100, 100_000), (1024, 60_000), (100_000, 2_000))
Connect = Callable[[], RawConnection]


def tls(bench: Bench) -> list[Figure]:
    authority = Authority(bench.folder)
    certificate, key = authority.issue("bench")
    port = _free_port()
    settings = (
        f"brokerServicePortTls={port}",
        f"tlsCertificateFilePath={certificate}",
        f"tlsKeyFilePath={key}",
    )
    context = ssl.create_default_context(cafile=str(authority.path))
    with bench.broker("tls", *settings) as broker:
        ways: list[tuple[str, Connect]] = [
            ("plain", lambda: RawConnection(broker.port)),
            ("TLS", lambda: RawConnection(port, context)),
        ]
        return [
            figure
            for size, count in SIZES
            for name, connect in ways
            for figure in _figures(bench, broker, connect, name, size, count)
        ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _figures(
    bench: Bench, broker: MeasuredBroker, connect: Connect, way: str, size: int, count: int
) -> list[Figure]:
    count = bench.scaled(count)
    published, delivered = [], []
    for _ in range(bench.runs):
        topic = new_topic()
        published.append(measured(broker, lambda t=topic: _publish(connect(), t, size, count)))
        delivered.append(measured(broker, lambda t=topic: _consume(connect(), t, count)))
    what = f"{size} B, {way}"
    return [
        _cpu(f"publish {what}: broker CPU", published, count),
        Figure(f"publish {what}: rate", "e/s", [s.rate(count) for s in published]),
        _cpu(f"dispatch {what}: broker CPU", delivered, count),
    ]


def _cpu(name: str, spent: list[Spent], count: int) -> Figure:
    return Figure(name, "µs/e", [each.cpu_us(count) for each in spent])


def _publish(connection: RawConnection, topic: str, size: int, count: int) -> None:
    connection.create_producer(topic)
    window = min(WINDOW, max(1, 2_000_000 // size))
    frames = send_frames(build_batch(1, size), 1, window)
    receipts = FrameCounter(Type.SEND_RECEIPT)
    for _ in range(count // window):
        connection.socket.sendall(frames)
        _count(connection, receipts, window)
    connection.close()


def _consume(connection: RawConnection, topic: str, count: int) -> None:
    connection.subscribe(topic, "bench")
    connection.allow(count)
    _count(connection, FrameCounter(Type.MESSAGE), count)
    connection.close()


def _count(connection: RawConnection, counter: FrameCounter, wanted: int) -> None:
    left = wanted
    while left > 0:
        chunk = connection.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise ConnectionError("The broker closed the connection")
        left -= counter.feed(chunk)
