"""Rows of the official Python client: the broker's CPU compared with the client's, and with
pybroker.client.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from figures import Figure, Target
from measured_broker import MeasuredBroker
from workload import Bench, new_topic

_CLIENTS = {"official client": "pulsar", "pybroker.client": "pybroker.client"}
SCRIPT = Path(__file__).with_name("official_client.py")


@dataclass(frozen=True, slots=True)
class Shared:
    """The cost of one job on both sides."""

    seconds: float
    client_cpu_s: float
    broker_cpu_s: float

    @property
    def broker_percent(self) -> float:
        return 100 * self.broker_cpu_s / self.client_cpu_s


def official_client(bench: Bench) -> list[Figure]:
    jobs = [
        ("produce", "publish, not batched", bench.scaled(40_000), Target(20)),
        ("produce-batched", "publish, batched", bench.scaled(200_000), Target(10)),
        ("consume", "consume batches", bench.scaled(200_000), None),
    ]
    figures = []
    with bench.broker("official") as broker:
        # Each run consumes the messages of its batched publisher.
        topics = [new_topic() for _ in range(bench.runs)]
        for job, name, count, target in jobs:
            runs = [
                run_official(broker, new_topic() if job == "produce" else topic, job, count)
                for topic in topics
            ]
            name = f"official client: {name}"
            figures += [
                Figure(f"{name}: rate", "msg/s", [count / run.seconds for run in runs]),
                Figure(
                    f"{name}: broker's CPU of client's",
                    "%",
                    [run.broker_percent for run in runs],
                    target,
                ),
            ]
    return figures


def both_clients(bench: Bench) -> list[Figure]:
    """The official Python client and pybroker.client in turn, on one broker, receiving the same
    topics.
    """
    with bench.broker("clients") as broker:
        figures = _beside(bench, broker, "produce", "not batched", bench.scaled(40_000))
        figures += _beside(bench, broker, "produce-batched", "batched", bench.scaled(200_000))
    return figures


def _beside(
    bench: Bench, broker: MeasuredBroker, publish: str, how: str, count: int
) -> list[Figure]:
    spent: dict[str, list[Shared]] = {}
    for _ in range(bench.runs):
        topic = new_topic()
        for client, library in _CLIENTS.items():
            for job, name in ((publish, "publish"), ("receive", "receive and acknowledge")):
                # Both receive the official client's messages.
                apart = job == publish and library != "pulsar"
                place = new_topic() if apart else topic
                run = run_official(broker, place, job, count, library)
                spent.setdefault(f"{client}: {name}, {how}", []).append(run)
    return [
        figure
        for name, runs in spent.items()
        for figure in (
            Figure(f"{name}: rate", "msg/s", [count / run.seconds for run in runs]),
            Figure(f"{name}: its CPU", "µs", [run.client_cpu_s / count * 1e6 for run in runs]),
        )
    ]


def run_official(
    broker: MeasuredBroker, topic: str, job: str, count: int, library: str = "pulsar"
) -> Shared:
    url = f"pulsar://127.0.0.1:{broker.port}"
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), url, topic, job, str(count), library],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None and client.stdout is not None
        if client.stdout.readline().strip() != "ready":
            raise RuntimeError("The official client could not connect; see its message above")
        before = broker.cpu_s()
        print("go", file=client.stdin, flush=True)
        spent = json.loads(client.stdout.readline())
        broker_cpu_s = broker.cpu_s() - before
        print("bye", file=client.stdin, flush=True)
    return Shared(spent["seconds"], spent["cpu_s"], broker_cpu_s)
