"""A pybroker and an Apache Pulsar broker in one cluster, shared by the tests of a worker."""

import asyncio
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

sys.path.append(str(Path(__file__).parents[1] / "cluster"))

from apache_broker import ApacheBroker, set_up_metadata
from bookkeeper_client import client_of as storage_client_of
from broker_processes import BrokerProcess
from servers import Cluster

from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger_metadata import CursorRecord, cursor_key
from managed_ledger.storage.bookkeeper.client import PULSARS_QUORUMS
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers
from managed_ledger.storage.bookkeeper.reader import LedgerReader
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import NoNode
from pybroker.base.names import TopicName

AnyBroker = ApacheBroker | BrokerProcess
ClientOf = Callable[[AnyBroker], pulsar.Client]


class Two:
    """A broker of each kind, in one cluster."""

    def __init__(self, folder: Path, storage: Cluster) -> None:
        self.storage = storage
        self.apache = ApacheBroker(storage, {"acknowledgmentAtBatchIndexLevelEnabled": "true"})
        self.apache.start()  # on this thread: a server dies with the thread that started it
        self.ours = BrokerProcess(folder, "ours", storage.zookeeper_address)
        self.apache.wait_until(self.apache.is_healthy)

    def close(self) -> None:
        self.apache.kill()
        self.ours.kill()

    def node(self, path: str) -> bytes | None:
        """The value of a node in ZooKeeper."""

        async def looked() -> bytes | None:
            zookeeper = ZooKeeper(self.storage.zookeeper_address, random.Random(), 4000)
            await zookeeper.open()
            try:
                return (await zookeeper.get(path)).value
            except NoNode:
                return None
            finally:
                await zookeeper.close()

        return asyncio.run(looked())

    def left_in_batches(self, topic: TopicName, subscription: str) -> int:
        """The number of unacknowledged messages in a stored cursor's partly acknowledged batches.
        Reads the cursor's ledger without fencing its writer.
        """
        family, key = ManagedLedgers(), cursor_key(topic.ledger_name, subscription)
        node = self.node(str(family.path_of(key)))
        if node is None:
            return 0
        stored = family.decode(key, node)
        if stored.ledger_id == NO_LEDGER:
            return 0
        entry = asyncio.run(self._last_written(stored.ledger_id))
        record = CursorRecord.decode(family.with_entry(key, stored, entry).value, key)
        return sum(bits.bit_count() for bits in record.batches.values())

    async def _last_written(self, ledger_id: int) -> bytes:
        async with storage_client_of(self.storage.zookeeper_address, PULSARS_QUORUMS) as client:
            metadata = (await client.store.get(ledger_id)).metadata
            reader = LedgerReader(ledger_id, metadata, client.bookies)
            found = b""
            for entry_id in itertools.count():
                try:
                    [body] = await reader.read(entry_id, entry_id, 1 << 20)
                except CorruptStorage:  # no bookie has the entry
                    return found
                found = body.payload
        raise AssertionError("it ends before")


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with Cluster(set_up=set_up_metadata) as storage:
        two = Two(tmp_path_factory.mktemp("two"), storage)
        yield two
        two.close()


@pytest.fixture
def two(both: Two) -> Two:
    """Both brokers; starts them again if an earlier test killed them."""
    if both.ours.process.poll() is not None:
        both.ours.start()
    if not both.apache.is_running():
        print(f"the broker of Apache Pulsar had ended:\n{both.apache.log[-6000:]}")
        both.apache.start_and_wait()
    return both


@pytest.fixture
def client_of(two: Two) -> Iterator[Callable[[AnyBroker], pulsar.Client]]:
    made: list[pulsar.Client] = []

    def client(broker: AnyBroker) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        made.append(pulsar.Client(broker.service_url, operation_timeout_seconds=60, logger=logger))
        return made[-1]

    yield client
    for each in made:
        each.close()


def take(broker: AnyBroker, topic: str) -> None:
    """Make this broker serve the topic, unless another broker does."""
    url = f"{broker.admin_url}/lookup/v2/topic/{topic.replace('://', '/')}"
    found = httpx.get(url, params={"authoritative": "true"}, timeout=30)
    assert found.status_code == 200, f"{found.status_code} {found.headers} {found.text}"
    assert found.json()["brokerUrl"] == broker.service_url, found.text


def admin(broker: AnyBroker, method: str, path: str, body: Any = None) -> Any:
    """The admin API's answer; an error fails the test."""
    url = f"{broker.admin_url}/admin/v2/{path}"
    answer = httpx.request(method, url, json=body, follow_redirects=True, timeout=30)
    assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
    return answer.json() if answer.content else None
