"""Transactions written by one broker and served by the other: Apache Pulsar's, and pybroker.

Both brokers use the same ZooKeeper and bookies, one after the other. The official Java client
publishes, acknowledges, commits and aborts.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parents[1] / each) for each in ("cluster", "compat")]

from apache_broker import ApacheBroker, broker_jars, set_up_metadata
from bookkeeper_client import WallClock
from broker_processes import BrokerProcess
from documents import ROOT, blocks
from official_java import OfficialClient, java_gateway
from servers import Cluster

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import BARE
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from pybroker.transaction.coordinator.log.pulsar_log import PulsarLog
from pybroker.transaction.coordinator.log.transaction_log import log_name
from pybroker.transaction.coordinator.metadata_store import ChangeStatus
from pybroker.transaction.txn_status import TxnStatus

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.timeout(600)]
NOTHING_S = 5
LIMIT_S = 300
(COMMAND,) = (block.text.split() for block in blocks(ROOT / "docs/hand-over.md")[:1])
ORDERS, BILLS = (f"persistent://public/default/{each}" for each in ("orders", "bills"))
SETTINGS = {"transactionCoordinatorEnabled": "true"}


class Place:
    """The storage that the brokers serve, one after the other."""

    def __init__(self, folder: Path, storage: Cluster, gateway: Any) -> None:
        self._folder = folder
        self.storage = storage
        self._gateway = gateway
        self.apache = ApacheBroker(storage, SETTINGS)

    @contextmanager
    def served_by_apache(self) -> Iterator[OfficialClient]:
        self.apache.start_and_wait()
        try:
            with self._client(self.apache.service_url) as client:
                yield client
        finally:
            self.apache.kill()

    @contextmanager
    def served_by_us(self, name: str) -> Iterator[OfficialClient]:
        one = {"transactionCoordinators": 1}  # as in the cluster's set-up
        broker = BrokerProcess(self._folder, name, self.storage.zookeeper_address, one)
        try:
            with self._client(broker.service_url) as client:
                yield client
        finally:
            broker.kill()

    @contextmanager
    def _client(self, url: str) -> Iterator[OfficialClient]:
        client = OfficialClient(self._gateway, url)
        yield client
        client.shutdown()

    def hand_over(self, *more: str) -> tuple[int, str]:
        """Run the command of docs/hand-over.md, with the configuration of the previous broker."""
        assert COMMAND == ["pybroker", "hand-over", "--config", "broker.conf"]
        conf = str(self._folder / "ours.conf")
        words = [sys.executable, "-m", *COMMAND[:3], conf, *more]
        deadline = time.monotonic() + LIMIT_S
        while True:
            done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
            said = done.stdout + done.stderr
            # A killed broker is listed until its session ends.
            if "brokers use the cluster" not in said or time.monotonic() > deadline:
                return done.returncode, said

    def decide(self, coordinator_id: int, local_id: int) -> None:
        """Decide to commit, as a coordinator that dies before it tells the participants."""

        async def decided() -> None:
            backend = BookKeeperBackend(
                self.storage.zookeeper_address, WallClock(), random.Random(), ClusterConfig()
            )
            await backend.open()
            log = await ManagedLedgerFactory(backend, WallClock()).open(log_name(coordinator_id))
            pulsar = PulsarLog(coordinator_id)
            pulsar.highest_id = local_id + 1  # the transaction that stays open
            entry = pulsar.encode([ChangeStatus(local_id, TxnStatus.COMMITTING, 1)])
            await log.append_one(entry, 1, BARE)
            await log.close()
            await backend.close()

        asyncio.run(decided())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    set_up = partial(set_up_metadata, coordinators=1)
    with (
        Cluster(2, set_up=set_up) as storage,
        java_gateway(broker_jars(), ["-Xmx128m"]) as gateway,  # includes the official client
    ):
        yield Place(tmp_path_factory.mktemp("place"), storage, gateway)


def publish(client: OfficialClient, topic: str) -> dict[str, Any]:
    """Publish messages with the names of their transactions' outcomes; returns the transactions by
    name.
    """
    producer = client.producer(topic)
    transactions = {name: client.transaction(600) for name in ("commit", "abort", "decide", "open")}
    for name in ("commit", "abort"):
        for _ in range(2):
            producer.newMessage(transactions[name]).value(name.encode()).send()
    producer.newMessage().value(b"plain").send()
    transactions["commit"].commit().get()
    transactions["abort"].abort().get()
    for name in ("decide", "open"):
        producer.newMessage(transactions[name]).value(name.encode()).send()
    producer.newMessage().value(b"behind").send()
    return transactions


def acknowledge(client: OfficialClient, topic: str) -> None:
    """Acknowledge the first message in a committed transaction, the second in an aborted one."""
    consumer = client.consumer(topic, "half", "Shared")
    first, second = client.receive(consumer), client.receive(consumer)
    for message, end in ((first, "commit"), (second, "abort")):
        txn = client.transaction()
        consumer.acknowledgeAsync(message.getMessageId(), txn).get()
        getattr(txn, end)().get()
    consumer.close()


def read(client: OfficialClient, topic: str, subscription: str, count: int) -> list[str]:
    """Receive `count` messages, and check that no more come."""
    consumer = client.consumer(topic, subscription, "Shared")
    found = [message for _ in range(count) if (message := client.receive(consumer)) is not None]
    assert client.receive(consumer, NOTHING_S) is None
    consumer.close()
    return [bytes(message.getData()).decode() for message in found]


def numbers(txn: Any) -> tuple[int, int]:
    return txn.getTxnID().getMostSigBits(), txn.getTxnID().getLeastSigBits()


def test_transactions_go_from_apache_s_broker_to_ours_and_back(place: Place) -> None:
    with place.served_by_apache() as client:
        of_apache = publish(client, ORDERS)
        acknowledge(client, ORDERS)
    place.decide(*numbers(of_apache["decide"]))

    with place.served_by_us("ours") as client:
        assert read(client, ORDERS, "all", 4) == ["commit", "commit", "plain", "decide"]
        assert read(client, ORDERS, "half", 3) == ["commit", "plain", "decide"]
        of_ours = publish(client, BILLS)
        acknowledge(client, BILLS)
        assert numbers(of_ours["commit"]) > numbers(of_apache["open"])
    place.decide(*numbers(of_ours["decide"]))

    code, said = place.hand_over()
    assert code == 1 and "2 transactions are open: (0," in said, said
    code, said = place.hand_over("--abort-open")
    assert code == 0 and "handed over 1 transaction coordinators and 2 topics" in said, said

    with place.served_by_apache() as client:
        for topic in (ORDERS, BILLS):
            everything = ["commit", "commit", "plain", "decide", "behind"]
            assert read(client, topic, "all again", 5) == everything
            assert read(client, topic, "half", 4) == everything[1:]
        anew = client.transaction()
        assert numbers(anew) > numbers(of_ours["open"])
        client.producer(BILLS).newMessage(anew).value(b"anew").send()
        anew.commit().get()
        assert read(client, BILLS, "all again", 6)[-1] == "anew"
