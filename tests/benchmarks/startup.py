"""Rows of starting: with an empty directory, with a full log, and the cost of reading that log."""

import select
import time
from pathlib import Path

from figures import Figure, Target
from measured_broker import MeasuredBroker
from raw_connection import RawConnection
from workload import Bench, Load, consume, new_topic, publish, subscribed

STARTS = 5
CONNECTIONS = 1000
IDLE_S = 2.0


def start_and_idle(bench: Bench) -> list[Figure]:
    accepting, resident = [], []
    broker = bench.broker("start")
    broker.start()  # chooses its port
    for _ in range(STARTS):
        broker.stop()
        accepting.append(_seconds_to_accept(broker))
        broker.wait_until_ready()
        _wait(IDLE_S)
        resident.append(broker.resident_mb())
    broker.stop()
    return [
        Figure("start to accepting", "ms", [s * 1000 for s in accepting], Target(400, 250)),
        Figure("idle memory", "MB", resident, Target(60, 40)),
    ]


def _seconds_to_accept(broker: MeasuredBroker) -> float:
    """The seconds from the start of the process to the answer to CONNECT."""
    started = time.perf_counter()
    broker.launch()
    while True:
        try:
            RawConnection(broker.port).close()
            return time.perf_counter() - started
        except ConnectionError:
            _wait(0.002)


def _wait(seconds: float) -> None:
    select.select([], [], [], seconds)


def idle_connections(bench: Bench) -> list[Figure]:
    resident = []
    for _ in range(bench.runs):
        with bench.broker(
            "connections", "brokerMaxConnectionsPerIp=2000", "brokerMaxConnections=2000"
        ) as broker:
            connections = [RawConnection(broker.port) for _ in range(CONNECTIONS)]
            resident.append(broker.resident_mb())
            for connection in connections:
                connection.close()
    return [Figure(f"memory with {CONNECTIONS} idle connections", "MB", resident, Target(60))]


def catch_up_1kb(bench: Bench) -> list[Figure]:
    """Read more than fits into any cache, after a kill and a restart."""
    load = Load(bench.scaled(250_000), 1, 1024, window=5_000)
    with bench.broker("catch-up") as broker:
        topic = new_topic()
        publish(broker, topic, load)
        broker.kill()
        size_mb = _size_mb(broker.data_dir)
        restart_s = _seconds_to_start(broker)
        spent = [
            consume(broker, subscribed(broker, topic, f"catch-up-{run}"), load)
            for run in range(bench.runs)
        ]
    cpu = [s.cpu_us(load.entries) for s in spent]
    return [
        Figure("catch-up read 1 KB: rate", "e/s", [s.rate(load.entries) for s in spent]),
        Figure("catch-up read 1 KB: broker CPU", "µs/e", cpu, Target(5, 3)),
        Figure(f"start after kill -9 over {size_mb:.0f} MB", "s", [restart_s], Target(3)),
    ]


def _seconds_to_start(broker: MeasuredBroker) -> float:
    started = time.perf_counter()
    broker.start()
    return time.perf_counter() - started


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
