"""Sessions of a transactional id that have producers and transactions on several brokers."""

from collections.abc import Iterator
from typing import Any

import pytest
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.errors import InvalidTxnStatus, NotAllowed, ProducerFenced
from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.client.aio import Client, Producer, Transaction
from pybroker.simulation.world import SimulatedClock
from pybroker.transaction.txn_status import TxnStatus

pytestmark = pytest.mark.slow

ID = "billing"


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0, transaction_coordinators=2)
    yield cluster
    cluster.close()


class Worker:
    """A process that does the work of the id: one session, with a producer on each topic."""

    def __init__(self, cluster: TxnCluster, at: TxnBroker, number: int) -> None:
        rng = cluster.world.stream(f"worker {number}")
        clock = SimulatedClock(cluster.world)
        self.client = Client(at.url, clock=clock, rng=rng, transactional_id=ID)
        self.producers: list[Producer] = []

    async def open(self, topics: list[str]) -> "Worker":
        for topic in topics:
            self.producers.append(await self.client.create_producer(topic))
        return self

    async def begin(self, coordinator: int) -> Transaction:
        for _ in range(20):  # a client takes its coordinators by turns
            txn = await self.client.new_transaction(60_000)
            if txn.txn_id.most == coordinator:
                return txn
            await txn.abort()
        raise AssertionError("no transaction of this coordinator")

    @property
    def epoch(self) -> int:
        session = self.client._cluster.session
        assert session is not None
        return session._epoch


class Work:
    """Broker one serves coordinator 0 and broker two coordinator 1; each a topic."""

    def __init__(self, cluster: TxnCluster) -> None:
        self.cluster = cluster
        self.one, self.two = self.brokers = cluster.start("one"), cluster.start("two")
        for number, broker in enumerate(self.brokers):
            cluster.take(broker, COORDINATOR_ASSIGN.partition_at(number))
        self.topics = [cluster.topic_of(broker) for broker in self.brokers]
        self._workers = 0
        cluster.call(self._subscribed())

    async def _subscribed(self) -> None:
        for broker, topic in zip(self.brokers, self.topics, strict=True):
            await self.cluster.read(broker, topic)  # the subscription keeps what it has not read

    async def worker(self, at: TxnBroker | None = None, topics: list[str] | None = None) -> Worker:
        self._workers += 1
        worker = Worker(self.cluster, at or self.one, self._workers)
        return await worker.open(self.topics if topics is None else topics)

    async def read(self) -> list[list[bytes]]:
        return [
            await self.cluster.read(broker, topic)
            for broker, topic in zip(self.brokers, self.topics, strict=True)
        ]


def test_one_client_is_one_session_on_all_brokers(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def publish() -> None:
        worker = await work.worker()
        for coordinator in range(2):
            txn = await worker.begin(coordinator)
            for producer in worker.producers:
                await producer.send(b"%d" % coordinator, txn=txn)
            await txn.commit()
        assert worker.epoch == 1
        assert await work.read() == [[b"0", b"1"], [b"0", b"1"]]

    cluster.call(publish())


def test_a_newer_session_fences_the_older_one_on_every_broker(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def fence() -> None:
        older = await work.worker(work.one)
        open_ones = [await older.begin(coordinator) for coordinator in range(2)]
        for txn in open_ones:
            for producer in older.producers:
                await producer.send(b"open", txn=txn)

        newer = await work.worker(work.two, topics=[work.topics[1]])
        assert (older.epoch, newer.epoch) == (1, 2)
        for txn in open_ones:
            broker = work.brokers[txn.txn_id.most]
            coordinator = broker.coordinators.serving(txn.txn_id.most)
            assert coordinator is not None
            assert coordinator.status(txn.txn_id) is TxnStatus.ABORTED
            with pytest.raises(InvalidTxnStatus, match="fenced"):
                await txn.commit()
        for producer in older.producers:
            with pytest.raises(ProducerFenced):
                await producer.send(b"zombie")
        with pytest.raises(ProducerFenced):
            await older.client.new_transaction()
        await newer.producers[0].send(b"new")
        assert await work.read() == [[], [b"new"]]

    cluster.call(fence())


def test_a_transaction_joins_the_session_of_a_producer_on_another_broker(
    cluster: TxnCluster,
) -> None:
    """As official clients do it: NEW_TXN names no session."""
    work = Work(cluster)

    async def join() -> None:
        client = cluster.client_at(work.one)
        own = {"txn.transactional.id": ID, "txn.session": "first"}
        producer = await client.create_producer(work.topics[1], properties=own)
        txn = await _begun(client, 0)
        await producer.send(b"open", txn=txn)
        begun = work.one.coordinators.begun(txn.txn_id)
        assert begun is not None
        assert begun.session is not None
        assert (begun.session.id.name, begun.session.epoch) == (ID, 1)
        other = await client.create_producer(
            work.topics[1], properties={**own, "txn.transactional.id": "another"}
        )
        with pytest.raises(NotAllowed, match="another id"):
            await other.send(b"no", txn=txn)

        newer = {**own, "txn.session": "second"}
        await client.create_producer(work.topics[1], properties=newer)
        assert work.one.coordinators.status(txn.txn_id) is TxnStatus.ABORTED
        assert await work.read() == [[], []]

    cluster.call(join())


async def _begun(client: Any, coordinator: int) -> Transaction:
    for _ in range(20):
        txn: Transaction = await client.new_transaction(60_000)
        if txn.txn_id.most == coordinator:
            return txn
        await txn.abort()
    raise AssertionError("no transaction of this coordinator")


def test_a_session_without_a_name_is_refused(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def refuse() -> None:
        client = cluster.client_at(work.one)
        with pytest.raises(NotAllowed, match=r"txn\.session"):
            await client.create_producer(
                work.topics[0], properties={"txn.transactional.id": "payments"}
            )

    cluster.call(refuse())
