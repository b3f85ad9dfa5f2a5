"""Rows of brokers on real bookies: CPU per entry compared with the embedded engine, three brokers
compared with one, and the time to recover the ledgers of a killed broker.

Needs Java 17. Bookies and ZooKeeper share the machine with the brokers, which affects the rates.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
from figures import Figure, Target
from flood import drive
from workload import Bench, Load, Spent, new_topic, publish, publisher

TESTS: Final = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / folder) for folder in ("bookkeeper", "cluster", "support")]

from bookkeeper_client import append, client_of  # noqa: E402
from broker_processes import BrokerProcess  # noqa: E402
from servers import Cluster  # noqa: E402

from managed_ledger.storage.bookkeeper.quorums import Quorums  # noqa: E402

LEDGERS: Final = 1000
AT_ONCE: Final = 50
TOPICS: Final = 6  # shared by three brokers
QUORUMS: Final = Quorums(3, 3, 2)


class ClusterBroker(BrokerProcess):
    """A broker process with MeasuredBroker's interface for `publish`."""

    @property
    def port(self) -> int:
        return int(self.service_url.rpartition(":")[2])

    def cpu_s(self) -> float:
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def owner_of(self, topic: str) -> str:
        """The service URL of the topic's broker; the lookup assigns the bundle if necessary."""
        url = f"{self.admin_url}/lookup/v2/topic/{topic.replace('://', '/')}"
        found: str = httpx.get(url, follow_redirects=True, timeout=30).json()["brokerUrl"]
        return found


def several_brokers(bench: Bench) -> list[Figure]:
    """The first broker starts alone. When the others have joined, it is restarted, so that all get
    bundles.
    """
    load = Load(bench.scaled(50_000), 1, 1024, window=2_000)
    with Cluster() as storage, bench.broker("embedded") as embedded:
        brokers = [ClusterBroker(bench.folder, "a", storage.zookeeper_address)]
        try:
            ratios, alone = _against_embedded(bench, brokers[0], embedded, load)
            for name in "bc":
                brokers.append(ClusterBroker(bench.folder, name, storage.zookeeper_address))
            brokers[0].stop()
            brokers[0].start()
            together = [_published_by_all(brokers, load) for _ in range(bench.runs)]
        finally:
            for broker in brokers:
                broker.kill()
        recovered_s = [_recovery_s(storage) for _ in range(bench.runs)]
    rates = [spent.rate(load.entries) for spent in alone]
    shared = [spent.rate(TOPICS * load.entries) for spent in together]
    costs = [spent.cpu_us(TOPICS * load.entries) for spent in together]
    return [
        Figure("publish 1 KB on BookKeeper: CPU, of embedded", "×", ratios, Target(3.0)),
        Figure("publish 1 KB on BookKeeper, one broker: rate", "e/s", rates),
        Figure("publish 1 KB on BookKeeper, three brokers: rate", "e/s", shared),
        Figure("publish 1 KB on BookKeeper, three brokers: CPU", "µs/e", costs),
        Figure(f"{LEDGERS} ledgers are recovered", "s", recovered_s, Target(10.0)),
    ]


def _against_embedded(
    bench: Bench, broker: ClusterBroker, embedded: object, load: Load
) -> tuple[list[float], list[Spent]]:
    """Both alternate, so that they see the same machine."""
    ratios, alone = [], []
    for run in range(bench.runs + 1):
        here = publish(embedded, new_topic(), load)  # type: ignore[arg-type]
        topic = new_topic()
        broker.owner_of(topic)
        there = publish(broker, topic, load)  # type: ignore[arg-type]
        if run > 0:  # the first run warms both up
            ratios.append(there.cpu_s / here.cpu_s)
            alone.append(there)
    return ratios, alone


def _published_by_all(brokers: Sequence[ClusterBroker], load: Load) -> Spent:
    by_url = {each.service_url: each for each in brokers}
    topics = [new_topic() for _ in range(TOPICS)]
    owners = [by_url[brokers[0].owner_of(topic)] for topic in topics]
    pumps = [
        publisher(owner, topic, load)  # type: ignore[arg-type]
        for owner, topic in zip(owners, topics, strict=True)
    ]
    cpu_before = sum(each.cpu_s() for each in brokers)
    seconds = drive(pumps)
    for pump in pumps:
        pump.connection.close()
    return Spent(seconds, sum(each.cpu_s() for each in brokers) - cpu_before)


def _recovery_s(storage: Cluster) -> float:
    return asyncio.run(_recovered(storage.zookeeper_address))


async def _recovered(zookeeper: str) -> float:
    """Recover like the next owner: all ledgers at once, each fenced, read forward and closed."""
    async with client_of(zookeeper, QUORUMS, seed="dead", session_timeout_ms=30_000) as dead:
        ledgers: list[int] = []
        for _ in range(LEDGERS // AT_ONCE):
            writers = await asyncio.gather(*(dead.create() for _ in range(AT_ONCE)))
            await asyncio.gather(*(append(each, b"one", b"two") for each in writers))
            ledgers += [each.ledger_id for each in writers]
            for writer in writers:
                writer.abandon()
    async with client_of(zookeeper, QUORUMS, seed="next", session_timeout_ms=30_000) as heir:
        began_s = time.monotonic()
        found = await asyncio.gather(*map(heir.recover, ledgers))
        seconds = time.monotonic() - began_s
    assert [each.last_entry_id for each in found] == [1] * LEDGERS
    return seconds
