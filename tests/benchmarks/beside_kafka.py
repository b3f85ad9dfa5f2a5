"""The row `kafka`: Kafka's clients with this broker and with Apache Kafka in turn, on one disk.

Both make every batch durable before its receipt (Kafka with log.flush.interval.messages=1). Every
job runs once before it counts, so that the JVM has compiled what it needs. The CPU is that of the
server's process.
"""

import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import apache_kafka
import kafka_jobs
from apache_kafka import ApacheKafka
from figures import Figure, Target
from kafka_jobs import CONNECTIONS, PRODUCERS, Server, Transactional, create
from measured_broker import MeasuredBroker
from transactions import COORDINATORS, publishing
from workload import Bench, Spent, measure, new_topic

OURS, KAFKA = "pybroker", "Apache Kafka"
MESSAGES_OF_LARGE: Final = 100
SMALL, LARGE = "transaction of 1 message", f"transaction of {MESSAGES_OF_LARGE} messages"
SINGLE, COMMIT = "single-message requests", "lone commit"
BATCHES: Final = (("batches of 100 B", 100, 60_000), ("batches of 1 KB", 1000, 10_000))
COMMITS: Final = 30
REQUESTS: Final = 16_000
TRANSACTIONS: Final = 400
FEWER: Final = 10  # Kafka waits for several fsyncs in each request: fewer of them are enough


def beside_kafka(bench: Bench) -> list[Figure]:
    """No figures if Kafka's jars are not there; a sentence says so."""
    if not apache_kafka.are_there():
        print(apache_kafka.HOW_TO_GET_THEM, flush=True)
        return []
    with ExitStack() as running:
        ours = running.enter_context(bench.broker("kafka", kafka=True))
        folder = Path(tempfile.mkdtemp(prefix="apache-kafka-", dir=bench.folder))
        both = {OURS: ours, KAFKA: running.enter_context(ApacheKafka(folder))}
        parts = {OURS: 1.0, KAFKA: 1 / FEWER}
        sides = {name: _Side(bench, server, parts[name]) for name, server in both.items()}
        for run in range(bench.runs + 1):
            for side in sides.values():
                side.run(warm_up=run == 0)
        over_pulsar = [_over_pulsar_us(bench, ours) for _ in range(bench.runs + 1)][1:]
    return _figures(sides[OURS], sides[KAFKA], over_pulsar)


class _Side:
    """One of the servers, and what the jobs have cost there: by name, a value for each run.

    `part` is the part of the requests and transactions that it has to do.
    """

    def __init__(self, bench: Bench, server: Server, part: float) -> None:
        self.cpu_us: dict[str, list[float]] = defaultdict(list)
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.commit_ms: list[float] = []
        self._bench, self._server, self._part, self._runs = bench, server, part, 0
        self._producers = Transactional(server, create(server, "transactions"))

    def run(self, warm_up: bool) -> None:
        """Every job once."""
        server, bench = self._server, self._bench
        self._runs += 1
        for name, size, count in BATCHES:
            topic, count = create(server, f"batches-{size}-{self._runs}"), bench.scaled(count)
            produced = kafka_jobs.produce(server, topic, count, size)
            self._keep(warm_up, f"{name}: produce", count, produced)
            consumed = kafka_jobs.consume(server, topic, count)
            self._keep(warm_up, f"{name}: consume", count, consumed)
        count = _multiple(REQUESTS * bench.scale * self._part, CONNECTIONS)
        topic = create(server, f"single-{self._runs}")
        self._keep(warm_up, SINGLE, count, kafka_jobs.single_messages(server, topic, count))
        self._run_transactions(warm_up)

    def _run_transactions(self, warm_up: bool) -> None:
        count = _multiple(TRANSACTIONS * self._bench.scale * self._part, PRODUCERS)
        self._keep(warm_up, SMALL, count, self._producers.run(count, 1))
        self._keep(warm_up, LARGE, count, self._producers.run(count, MESSAGES_OF_LARGE))
        commit_ms = self._producers.lone_commit_ms(COMMITS)
        if not warm_up:
            self.commit_ms.append(commit_ms)

    def _keep(self, warm_up: bool, name: str, count: int, spent: Spent) -> None:
        if not warm_up:
            self.cpu_us[name].append(spent.cpu_us(count))
            self.rates[name].append(spent.rate(count))


def _multiple(count: float, of: int) -> int:
    return max(1, int(count) // of) * of


def _over_pulsar_us(bench: Bench, broker: MeasuredBroker) -> float:
    """The same small transactions with Pulsar's commands, from as many connections."""
    count, topic = _multiple(TRANSACTIONS * bench.scale, PRODUCERS), new_topic()
    pumps = [
        publishing(broker, topic, count // PRODUCERS, 1, COORDINATORS) for _ in range(PRODUCERS)
    ]
    spent = measure(broker, pumps)
    for pump in pumps:
        pump.connection.close()
    return spent.cpu_us(count)


def _figures(ours: _Side, theirs: _Side, pulsar_us: list[float]) -> list[Figure]:
    figures = []
    for name in ours.rates:
        rate = Target(20_000, higher_is_better=True) if name == SINGLE else None
        wanted = 1.0 if name.startswith("batches") else None
        unit = "txn/s" if name in (SMALL, LARGE) else "msg/s"
        figures += [
            Figure(f"{name}: {OURS}", unit, ours.rates[name], rate),
            Figure(f"{name}: {KAFKA}", unit, theirs.rates[name]),
            Figure(f"{name}: CPU of {OURS}", "µs", ours.cpu_us[name]),
            Figure(f"{name}: CPU of {KAFKA}", "µs", theirs.cpu_us[name]),
            _ratio(name, ours.cpu_us[name], theirs.cpu_us[name], "of Kafka's", wanted),
        ]
    return [
        *figures,
        Figure(f"{COMMIT}, p50: {OURS}", "ms", ours.commit_ms),
        Figure(f"{COMMIT}, p50: {KAFKA}", "ms", theirs.commit_ms),
        Figure(f"{SMALL}: CPU over Pulsar's protocol", "µs", pulsar_us),
        _ratio(SMALL, ours.cpu_us[SMALL], pulsar_us, "of Pulsar's", 1.2),
    ]


def _ratio(
    name: str, ours: list[float], theirs: list[float], of: str, wanted: float | None
) -> Figure:
    target = None if wanted is None else Target(wanted)
    return Figure(f"{name}: {OURS}'s CPU {of}", "times", [median(ours) / median(theirs)], target)
