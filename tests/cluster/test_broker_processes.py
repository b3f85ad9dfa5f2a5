"""`pybroker broker` on real bookies: docs/cluster.md, with the official client and crashes."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest
from broker_processes import BrokerProcess, wait_until
from servers import Cluster

from pybroker.client import Client

pytestmark = pytest.mark.slow
TOPICS = [f"persistent://public/default/orders-{number}" for number in range(8)]
FENCED = [f"persistent://public/default/fenced-{number}" for number in range(8)]
EXIT_SESSION_LOST = 71


@pytest.fixture(scope="module")
def storage() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


class Brokers:
    def __init__(self, folder: Path, storage: Cluster) -> None:
        self.all = [BrokerProcess(folder, name, storage.zookeeper_address) for name in "abc"]
        self._clients: list[pulsar.Client] = []

    def client(self, *brokers: BrokerProcess) -> pulsar.Client:
        hosts = [each.service_url.removeprefix("pulsar://") for each in brokers or self.all]
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(
            f"pulsar://{','.join(hosts)}", operation_timeout_seconds=60, logger=logger
        )
        self._clients.append(client)
        return client

    def owner(self, topic: str, asked: BrokerProcess | None = None) -> BrokerProcess:
        path = topic.replace("://", "/")
        url = f"{(asked or self.all[0]).admin_url}/lookup/v2/topic/{path}"
        found = httpx.get(url, follow_redirects=True, timeout=30).json()
        return next(each for each in self.all if each.service_url == found["brokerUrl"])

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for each in self.all:
            each.thaw()
            each.kill()


@pytest.fixture
def brokers(tmp_path: Path, storage: Cluster) -> Iterator[Brokers]:
    brokers = Brokers(tmp_path, storage)
    yield brokers
    brokers.close()


def keep(client: pulsar.Client, topic: str) -> None:
    """Keep all messages from now on for `read_all`: a topic without subscriptions deletes them."""
    client.subscribe(topic, "kept").close()


def read_all(client: pulsar.Client, topic: str, count: int) -> list[bytes]:
    consumer = client.subscribe(topic, "kept")
    return [consumer.receive(30_000).data() for _ in range(count)]


def test_any_broker_leads_to_every_topic(brokers: Brokers) -> None:
    writers = [brokers.client(each) for each in brokers.all]
    for number, topic in enumerate(TOPICS):
        producer = writers[number % 3].create_producer(topic)
        consumer = writers[(number + 1) % 3].subscribe(topic, "s")
        sent = [producer.send(b"%d" % each) for each in range(10)]
        received = [consumer.receive(30_000) for _ in sent]
        assert [each.data() for each in received] == [b"%d" % each for each in range(10)]
        for each in received:
            consumer.acknowledge(each)
    owners = {brokers.owner(topic, asked).service_url for topic in TOPICS for asked in brokers.all}
    assert len(owners) > 1
    for topic in TOPICS:
        assert len({brokers.owner(topic, asked).service_url for asked in brokers.all}) == 1
    for each in brokers.all:
        listed = httpx.get(f"{each.admin_url}/admin/v2/brokers/east").json()
        assert sorted(listed) == sorted(
            other.admin_url.removeprefix("http://") for other in brokers.all
        )
        assert httpx.get(f"{each.admin_url}/admin/v2/brokers/health", timeout=30).text == "ok"


def test_the_admin_api_of_any_broker_leads_to_the_topics_owner(brokers: Brokers) -> None:
    topic = TOPICS[0]
    producer = brokers.client().create_producer(topic)
    for _ in range(5):
        producer.send(b"x")
    for each in brokers.all:
        path = topic.replace("://", "/")
        url = f"{each.admin_url}/admin/v2/{path}/stats"
        stats = httpx.get(url, follow_redirects=True, timeout=30)
        assert stats.status_code == 200 and stats.json()["msgInCounter"] == 5


def test_a_transaction_over_topics_of_several_brokers_is_all_or_nothing(brokers: Brokers) -> None:
    urls = ",".join(each.service_url.removeprefix("pulsar://") for each in brokers.all)
    with Client(f"pulsar://{urls}") as client:
        producers = [client.create_producer(topic) for topic in TOPICS]
        readers = [client.subscribe(topic, "reads") for topic in TOPICS]
        assert len({brokers.owner(topic).service_url for topic in TOPICS}) > 1
        for ends in ("abort", "commit"):
            with client.new_transaction() as txn:
                for producer in producers:
                    producer.send(ends.encode(), txn=txn)
                if ends == "abort":
                    txn.abort()
        for reader in readers:
            message = reader.receive(timeout_millis=30_000)
            assert message.data() == b"commit"
            reader.acknowledge(message)


class Load:
    """Publishes to a topic until `end`, and records the acknowledged messages."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        keep(client, topic)
        self._producer = client.create_producer(topic, send_timeout_millis=0)
        self.acknowledged: list[bytes] = []
        self.longest_wait_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            content, began_s = b"%d" % number, time.monotonic()
            self._producer.send(content)
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_s)
            self.acknowledged.append(content)
            number += 1

    def goes_on(self) -> None:
        seen = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > seen + 20)

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_nothing_acknowledged_is_lost_when_the_owner_is_killed(brokers: Brokers) -> None:
    client = brokers.client()
    load = Load(client, TOPICS[0])
    load.goes_on()
    owner = brokers.owner(TOPICS[0])
    owner.kill()
    load.goes_on()
    load.end()
    print(f"fail-over: {load.longest_wait_s:.1f} s")
    others = [each for each in brokers.all if each is not owner]
    assert brokers.owner(TOPICS[0], others[0]) in others
    stored = read_all(brokers.client(*others), TOPICS[0], len(load.acknowledged))
    assert set(stored) >= set(load.acknowledged[:-1])
    owner.start()  # the same machine returns, and serves topics without an owner
    assert httpx.get(f"{owner.admin_url}/admin/v2/brokers/health", timeout=30).text == "ok"


def test_a_broker_that_stops_gives_its_topics_away_at_once(brokers: Brokers) -> None:
    client = brokers.client()
    load = Load(client, TOPICS[1])
    load.goes_on()
    owner = brokers.owner(TOPICS[1])
    assert owner.stop() == 0, owner.log.read_text()
    load.goes_on()
    load.end()
    others = [each for each in brokers.all if each is not owner]
    stored = read_all(brokers.client(*others), TOPICS[1], len(load.acknowledged))
    assert stored == load.acknowledged


def test_a_cluster_that_was_stopped_continues_where_it_was(brokers: Brokers) -> None:
    client = brokers.client()
    keep(client, TOPICS[2])
    producer = client.create_producer(TOPICS[2])
    for number in range(10):
        producer.send(b"%d" % number)
    for each in brokers.all:
        assert each.stop() == 0, each.log.read_text()
    for each in brokers.all:
        each.start()
    assert read_all(brokers.client(), TOPICS[2], 10) == [b"%d" % number for number in range(10)]


def test_a_broker_whose_session_is_over_ends_and_serves_nothing(brokers: Brokers) -> None:
    """The broker is frozen when its session ends, and another broker takes its topic."""
    load = Load(brokers.client(), TOPICS[3])
    load.goes_on()
    owner = brokers.owner(TOPICS[3])
    others = [each for each in brokers.all if each is not owner]
    owner.freeze()
    wait_until(lambda: is_served_by(brokers, TOPICS[3], others))
    owner.thaw()
    assert owner.ended() == EXIT_SESSION_LOST
    assert "its session with ZooKeeper has ended" in owner.log.read_text()
    load.goes_on()
    load.end()
    stored = read_all(brokers.client(*others), TOPICS[3], len(load.acknowledged))
    assert set(stored) >= set(load.acknowledged[:-1])


def is_served_by(brokers: Brokers, topic: str, others: list[BrokerProcess]) -> bool:
    path = topic.replace("://", "/")
    url = f"{others[0].admin_url}/lookup/v2/topic/{path}"
    found = httpx.get(url, follow_redirects=True, timeout=30)
    return found.status_code == 200 and found.json()["brokerUrl"] in [
        each.service_url for each in others
    ]


def test_a_newer_session_fences_the_older_one_on_every_broker_also_on_one_that_stands_still(
    brokers: Brokers,
) -> None:
    everybody = brokers.client()
    for topic in FENCED:
        keep(everybody, topic)
    session = {"txn.transactional.id": "billing", "txn.session": "first"}
    older = brokers.client()
    with pytest.raises(pulsar.PulsarException):
        older.create_producer(FENCED[0], properties={"txn.transactional.id": "billing"})
    zombies = {topic: older.create_producer(topic, properties=session) for topic in FENCED}
    for zombie in zombies.values():
        zombie.send(b"older")
    frozen = brokers.owner(FENCED[0])
    topic = next(each for each in FENCED if brokers.owner(each) is not frozen)
    frozen.freeze()
    newer = brokers.client(*(each for each in brokers.all if each is not frozen))
    producer = newer.create_producer(topic, properties={**session, "txn.session": "second"})
    outcomes: list[tuple[str, pulsar.Result]] = []
    for name, zombie in zombies.items():
        zombie.send_async(b"zombie", lambda result, _, name=name: outcomes.append((name, result)))
    frozen.thaw()
    assert frozen.ended() == EXIT_SESSION_LOST
    producer.send(b"newer")
    wait_until(lambda: len(outcomes) == len(FENCED))
    assert {result for _, result in outcomes} <= {
        pulsar.Result.ProducerFenced,
        pulsar.Result.AlreadyClosed,
    }
    for each in FENCED:
        expected = [b"older", b"newer"] if each == topic else [b"older"]
        consumer = newer.subscribe(each, "kept")
        assert [consumer.receive(30_000).data() for _ in expected] == expected
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
