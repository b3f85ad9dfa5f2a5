"""Spark's source and sink on several brokers: each row once, despite moves and a crash."""

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from broker_processes import BrokerProcess
from servers import Cluster
from spark_micro_batches import MicroBatches

from pybroker.client import Client, InitialPosition, Outgoing, encode_batch
from pybroker.demo.topics import create_partitioned, read_all

pytestmark = pytest.mark.slow

_NUMBERS = itertools.count()
ROWS = 3000
PER_ENTRY = 5
PARTITIONS = 6


@pytest.fixture(scope="module")
def storage() -> Iterator[Cluster]:
    with Cluster(1) as running:
        yield running


class Brokers:
    def __init__(self, folder: Path, storage: Cluster, topic: str) -> None:
        self.source, self.sink = (f"persistent://public/default/{topic}-{x}" for x in ("in", "out"))
        one_bookie = {
            "managedLedgerDefaultEnsembleSize": 1,
            "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1,
            "brokerDeleteInactiveTopicsEnabled": "false",
            "defaultNumberOfNamespaceBundles": 16,
        }
        self.all = [
            BrokerProcess(folder, name, storage.zookeeper_address, one_bookie) for name in "abc"
        ]
        hosts = [each.service_url.removeprefix("pulsar://") for each in self.all]
        self.service_url = f"pulsar://{','.join(hosts)}"

    @property
    def running(self) -> list[BrokerProcess]:
        return [each for each in self.all if each.process.poll() is None]

    def fill(self) -> None:
        for topic in (self.source, self.sink):
            create_partitioned(self.all[0].admin_url, topic, PARTITIONS)
        with Client(self.service_url) as client:
            client.subscribe(self.sink, "keep", initial_position=InitialPosition.Earliest).close()
            for partition, topic in enumerate(client.get_topic_partitions(self.source)):
                producer = client.create_producer(topic)
                values = [Outgoing(b"%d" % n) for n in range(partition, ROWS, PARTITIONS)]
                for first in range(0, len(values), PER_ENTRY):
                    producer.send_batch(encode_batch(values[first : first + PER_ENTRY]))

    def owners(self) -> dict[str, list[str]]:
        """The partitions that each broker serves, by its URL."""
        found: dict[str, list[str]] = {}
        for topic in (self.source, self.sink):
            for partition in range(PARTITIONS):
                name = f"{topic}-partition-{partition}"
                url = f"{self.running[0].admin_url}/lookup/v2/topic/{name.replace('://', '/')}"
                answer = httpx.get(url, follow_redirects=True, timeout=30).json()
                found.setdefault(answer["brokerUrl"], []).append(name)
        return found

    def unload(self) -> None:
        """Unload all bundles of the namespace, at every broker."""
        url = f"{self.running[0].admin_url}/admin/v2/namespaces/public/default/unload"
        httpx.put(url, follow_redirects=True, timeout=60).raise_for_status()

    def kill_an_owner(self) -> None:
        """Kill the first broker, in the connection order of clients, that serves a partition."""
        owners = self.owners()
        next(each for each in self.running if each.service_url in owners).kill()

    def copied(self) -> Counter[int]:
        return Counter(int(each.data()) for each in read_all(self.service_url, [self.sink]))

    def close(self) -> None:
        for each in self.all:
            each.kill()


@pytest.fixture
def brokers(tmp_path: Path, storage: Cluster) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path, storage, f"copy-{next(_NUMBERS)}")
    brokers.fill()
    yield brokers
    brokers.close()


def test_each_row_once_while_bundles_move_and_a_broker_dies(brokers: Brokers) -> None:
    """Calls the source's and sink's modules as Spark's processes do, without Spark's JVM."""
    assert len(brokers.owners()) > 1
    plan = {
        (1, "planned"): brokers.unload,
        (2, "read"): brokers.unload,
        (3, "written"): brokers.unload,
        (4, "locked"): brokers.unload,
        (5, "marked"): brokers.unload,
        (6, "read"): brokers.kill_an_owner,
        (8, "marked"): brokers.kill_an_owner,
    }
    lock = threading.Lock()

    def happens(batch_id: int, where: str) -> None:
        with lock:
            act = plan.pop((batch_id, where), None)
            if act is not None:
                act()

    batches = MicroBatches(brokers.service_url, brokers.source, brokers.sink, happens)
    count = batches.run()
    assert not plan, f"{count} batches"
    print(f"{count} batches, {batches.failed_attempts} attempts of tasks failed")
    assert brokers.copied() == Counter(range(ROWS))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["sink", "foreachBatch"])
def test_a_query_writes_each_row_once_while_bundles_move_and_a_broker_dies(
    brokers: Brokers, tmp_path: Path, kind: str
) -> None:
    script = Path(__file__).parent / "spark_copy_job.py"
    command = [sys.executable, str(script), kind, brokers.service_url, brokers.source, brokers.sink]
    plan: dict[str, Callable[[], None]] = {
        "batch 0": brokers.unload,
        "batch 2": brokers.unload,
        "batch 3": brokers.kill_an_owner,
        "batch 5": brokers.unload,
    }
    with (tmp_path / "job.log").open("wb") as log:
        job = subprocess.Popen(
            [*command, str(tmp_path / "checkpoint")], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert job.stdout is not None
            for line in job.stdout:
                print(time.strftime("%X"), line, end="")
                plan.pop(line.strip(), lambda: None)()
            assert job.wait(60) == 0, (tmp_path / "job.log").read_text()[-4000:]
        finally:
            job.kill()
            job.communicate()
    assert not plan
    assert brokers.copied() == Counter(range(ROWS))
