"""`make cluster-kill-rounds`: kill -9 in a real cluster under load, a hundred times.

The cluster has three brokers, three bookies and ZooKeeper; the load and the books are those of
`make kill-rounds`. A round waits until every worker has made progress, then does one of these to
one server: kill -9 of a broker, a bookie or ZooKeeper; SIGSTOP of a broker for longer than its
session; a cut of all connections to one server; or nothing, for comparison. It then measures the
time until every worker has made progress again, and restarts the server. Brokers that end because
their session is over are restarted at once, as a service manager would do. At the end the topics
must contain what clients were promised. With --kafka, a transactional producer of Kafka's is the
load, and bookies and brokers are killed with -9: see kafka_kill_rounds.py.
"""

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("bookkeeper", "cluster", "support", "faults")]

import kafka_kill_rounds  # noqa: E402
from broker_processes import SESSION_MS, BrokerProcess  # noqa: E402
from kill_books import faults_in  # noqa: E402
from kill_rounds import WORKERS, start_workers  # noqa: E402
from kill_sessions import Sessions  # noqa: E402
from kill_workers import Books, Progress  # noqa: E402
from servers import Cluster  # noqa: E402

from pybroker.client import Client  # noqa: E402
from pybroker.testing.reserved_port import ReservedPort  # noqa: E402

# Retention: the books compare all messages ever published.
SETTINGS: Final = {
    "brokerDeduplicationEnabled": "true",
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}
WEIGHTS: Final = {"nothing": 2, "broker": 5, "bookie": 3, "zookeeper": 1, "freeze": 2, "cut": 3}
MAX_DELAY_S: Final = 0.5
RECOVERED_WITHIN_S: Final = 120.0
LOOKS_EVERY_S: Final = 0.5
FROZEN_S: Final = 1.5 * SESSION_MS / 1000


class Broker(BrokerProcess):
    """A broker on fixed ports, so that clients find it again."""

    def __init__(self, folder: Path, name: str, zookeeper: str) -> None:
        self._ports = [ReservedPort(), ReservedPort()]
        super().__init__(folder, name, zookeeper, SETTINGS)

    def start(self, port: int = 0, http_port: int = 0) -> None:
        super().start(*(each.number for each in self._ports))

    @property
    def port(self) -> int:
        return self._ports[0].number


class Rounds:
    def __init__(
        self, storage: Cluster, folder: Path, rng: random.Random, say: Callable[[str], None]
    ) -> None:
        self._storage = storage
        self._rng = rng
        self._say = say
        self._progress = Progress()
        self._books = Books()
        self._brokers = [Broker(folder, name, storage.zookeeper_address) for name in "abc"]
        self._killed: Broker | None = None
        self.waits_s: dict[str, list[float]] = defaultdict(list)

    def run(self, rounds: int) -> list[str]:
        """Run the rounds; returns a sentence for each broken promise."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self._brokers)
        client = Client(f"pulsar://{hosts}", enable_transaction=True)
        sessions = Sessions(f"pulsar://{hosts}")
        threads = start_workers(client, sessions, self._progress, self._books)
        try:
            self._work_through(rounds)
            self._progress.stop()
            for thread in threads:
                thread.join(RECOVERED_WITHIN_S)
            if stuck := [thread.name for thread in threads if thread.is_alive()]:
                raise RuntimeError(f"{', '.join(stuck)} did not end: {self._books.summary()}")
            faults = [*faults_in(client, self._books), *sessions.faults_in(client)]
            client.close()
        finally:
            for broker in self._brokers:
                broker.thaw()
                broker.kill()
        self._say(
            f"{rounds} rounds: {self._books.summary()}, {sessions.count} sessions of a "
            f"transactional id; {len(faults)} promises broken"
        )
        return faults

    def _work_through(self, rounds: int) -> None:
        self._all_get_on()
        for number in range(1, rounds + 1):
            (kind,) = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
            self._progress.wait_until(lambda: False, self._rng.uniform(0, MAX_DELAY_S))
            self._say(f"round {number} of {rounds}: {kind}")
            began_s = time.monotonic()
            repair = getattr(self, f"_{kind}")()
            self._all_get_on()
            waited_s = time.monotonic() - began_s
            self.waits_s[kind].append(waited_s)
            self._say(f"  {waited_s:.2f} s until all got on")
            repair()
            self._killed = None
        self._all_get_on()

    def _all_get_on(self) -> None:
        before = {name: self._progress.count(name) for name in WORKERS}

        def all_got_on() -> bool:
            return all(self._progress.count(name) > count for name, count in before.items())

        deadline = time.monotonic() + RECOVERED_WITHIN_S
        while not self._progress.wait_until(all_got_on, LOOKS_EVERY_S):
            self._start_who_ended()
            if time.monotonic() > deadline:
                stuck = [name for name in before if self._progress.count(name) == before[name]]
                raise RuntimeError(f"no progress of {', '.join(stuck)}: {self._logs()}")

    def _start_who_ended(self) -> None:
        for broker in self._brokers:
            if broker is not self._killed and broker.process.poll() is not None:
                self._say(f"  {broker.log.name} ended with {broker.process.returncode}")
                broker.start()

    def _logs(self) -> str:
        return "\n".join(f"{each.log}:\n{each.log.read_text()[-5000:]}" for each in self._brokers)

    # The kinds of rounds; each returns its repair.

    def _nothing(self) -> Callable[[], None]:
        return _nothing

    def _broker(self) -> Callable[[], None]:
        broker = self._killed = self._rng.choice(self._brokers)
        broker.kill()
        return broker.start

    def _bookie(self) -> Callable[[], None]:
        bookie = self._rng.choice(self._storage.bookies)
        bookie.kill()
        return partial(self._storage.start_again, bookie)

    def _zookeeper(self) -> Callable[[], None]:
        """Restart ZooKeeper before the sessions end."""
        self._storage.zookeeper.kill()
        self._storage.start_again(self._storage.zookeeper)
        return _nothing

    def _freeze(self) -> Callable[[], None]:
        """Make a broker a zombie: it continues after others have taken its topics, and must end."""
        broker = self._rng.choice(self._brokers)
        broker.freeze()
        self._progress.wait_until(lambda: False, FROZEN_S)
        broker.thaw()
        return _nothing

    def _cut(self) -> Callable[[], None]:
        """Cut all connections to one server."""
        servers = [*self._brokers, *self._storage.bookies, self._storage.zookeeper]
        port = self._rng.choice(servers).port
        command = ["ss", "-K", "-H", "-t", "dst", "127.0.0.1", "dport", "=", str(port)]
        subprocess.run(command, check=True, capture_output=True)
        return _nothing


def _nothing() -> None:
    """Nothing to do or to repair."""


def figures(waits_s: dict[str, list[float]]) -> str:
    lines = [
        f"{kind}: {len(each)} times, until all got on: median {statistics.median(each):.2f} s, "
        f"worst {max(each):.2f} s"
        for kind, each in sorted(waits_s.items())
    ]
    return "\n".join(lines)


def pulsar_rounds(rounds: int, seed: int, folder: Path, say: Callable[[str], None]) -> list[str]:
    with Cluster() as storage:
        running = Rounds(storage, folder, random.Random(seed), say)
        faults = running.run(rounds)
        say(figures(running.waits_s))
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster-kill-rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--kafka", action="store_true", help="with a producer of Kafka's")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    say = partial(print, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.kafka:
            faults = kafka_kill_rounds.run(options.rounds, options.seed, Path(folder), say)
        else:
            faults = pulsar_rounds(options.rounds, options.seed, Path(folder), say)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    raise SystemExit(main())
