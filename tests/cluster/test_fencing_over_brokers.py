"""Sessions of a transactional id with producers and transactions on several brokers."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    ProducerFenced,
    PulsarError,
    ServiceNotReady,
)
from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.client.aio import Client, Producer, Transaction
from pybroker.client.errors import ConnectError, Timeout
from pybroker.simulation.world import SimulatedClock
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.slow

ID = "billing"


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0, transaction_coordinators=2)
    yield cluster
    cluster.close()


class Worker:
    """A process with the transactional id: one session, with a producer on each topic."""

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
        for _ in range(20):  # a client uses its coordinators in turn
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
    """Broker one serves coordinator 0, broker two coordinator 1; each serves a topic."""

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
            await self.cluster.read(broker, topic)  # the subscription keeps later messages

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
    """As with official clients, NEW_TXN names no session."""
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


# -- failures


def test_sessions_that_begin_at_once_on_two_brokers_are_told_apart(cluster: TxnCluster) -> None:
    """One session with producers created concurrently, and two different sessions."""
    work = Work(cluster)

    async def begin() -> None:
        one = cluster.client_at(work.one)
        same = {"txn.transactional.id": "same", "txn.session": "first"}
        both = await asyncio.gather(
            *(one.create_producer(topic, properties=same) for topic in work.topics)
        )
        for producer in both:
            await producer.send(b"same")
        others = [{**same, "txn.transactional.id": "other", "txn.session": name} for name in "ab"]
        made = await asyncio.gather(
            *(
                one.create_producer(topic, properties=properties)
                for topic, properties in zip(work.topics, others, strict=True)
            ),
            return_exceptions=True,
        )
        sent = []
        for producer in made:
            try:
                if isinstance(producer, BaseException):
                    raise producer
                await producer.send(b"newest")
                sent.append(producer)
            except ProducerFenced:
                continue
        assert len(sent) == 1

    cluster.call(begin())
    records = {each.name: record.epoch for each, record in work.one.coordinators.ids}
    assert records == {"same": 1, "other": 2}


def test_the_next_session_finishes_what_a_granting_broker_has_left(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def begin() -> tuple[Worker, Transaction]:
        older = await work.worker(work.two, topics=[work.topics[1]])
        txn = await older.begin(1)
        await older.producers[0].send(b"open", txn=txn)
        return older, txn

    older, txn = cluster.call(begin())
    hangs = asyncio.Event()

    async def hang(*_: object) -> int:
        await hangs.wait()
        return 0

    work.one.transactions.fencing.fence = hang  # type: ignore[method-assign]

    async def never_granted() -> None:
        with suppress(PulsarError, Timeout, ConnectError):
            await work.worker(work.one, topics=[work.topics[0]])

    cluster.client.create_task(never_granted())
    cluster.until(lambda: bool(_epoch(work.one) == 2))
    cluster.crash(work.one)

    async def begin_again() -> None:
        newer = await work.worker(work.two, topics=[work.topics[1]])
        assert newer.epoch == 3
        assert work.two.coordinators.status(txn.txn_id) is TxnStatus.ABORTED
        with pytest.raises(ProducerFenced):
            await older.producers[0].send(b"zombie")

    cluster.call(begin_again())


def _epoch(broker: TxnBroker) -> int | None:
    record = broker.coordinators.ids.get(TransactionalId(None, ID))
    return None if record is None else record.epoch


def test_no_session_is_granted_while_a_broker_does_not_answer(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def wait() -> None:
        older = await work.worker(topics=[work.topics[1]])
        cluster.world.network.cut_off(work.one.node, work.two.node, 60)
        with pytest.raises(ServiceNotReady, match=r"localhost:6651 must fence .* try again"):
            await work.worker(topics=[work.topics[0]])
        await older.producers[0].send(b"on")  # no other session has begun
        await asyncio.sleep(60)
        newer = await work.worker(topics=[work.topics[0]])
        assert newer.epoch == 2
        with pytest.raises(ProducerFenced):
            await older.producers[0].send(b"zombie")
        await newer.producers[0].send(b"new")
        assert await work.read() == [[b"new"], [b"on"]]

    cluster.call(wait())


def test_a_broker_that_does_not_answer_once_a_session_has_begun_is_named(
    cluster: TxnCluster,
) -> None:
    work = Work(cluster)

    async def wait() -> None:
        older = await work.worker(topics=[work.topics[1]])
        peers, request = work.one.transactions.peers, work.one.transactions.peers.request
        lost = True

        async def unanswered(broker: Any, body: Any) -> Any:
            if lost and isinstance(body, pb.CommandFenceSessions):
                await asyncio.sleep(10)
                raise ServiceNotReady("two: no answer in time")
            return await request(broker, body)

        peers.request = unanswered  # type: ignore[method-assign]
        with pytest.raises(ServiceNotReady, match="not fenced everywhere yet: two: no answer"):
            await work.worker(topics=[work.topics[0]])
        lost = False
        newer = await work.worker(topics=[work.topics[0]])
        assert newer.epoch == 3
        with pytest.raises(ProducerFenced):
            await older.producers[0].send(b"zombie")

    cluster.call(wait())


@pytest.mark.parametrize("is_told", [True, False])
def test_a_broker_without_zookeeper_publishes_nothing_of_a_session(
    cluster: TxnCluster, is_told: bool
) -> None:
    """No other broker has its topic, so only the broker itself can keep an older session from
    writing there. The broker is stopped while its ZooKeeper session ends, or is told that it has no
    connection.
    """
    work = Work(cluster)

    async def begin() -> Worker:
        older = await work.worker(topics=[work.topics[1]])
        await older.producers[0].send(b"before")
        return older

    older = cluster.call(begin())
    members = work.two.membership._cluster
    members._lost = lambda reason: None
    if not is_told:
        members._suspended.clear()

    async def cut() -> None:
        cluster.world.network.cut_off(cluster.life.zookeeper, work.two.node, 600)
        newer = await work.worker(topics=[work.topics[0]])
        assert newer.epoch == 2
        sending = asyncio.ensure_future(older.producers[0].send(b"zombie"))
        await newer.producers[0].send(b"new")
        await asyncio.sleep(5)
        cluster.crash(work.two)
        with pytest.raises(ProducerFenced):
            await sending
        assert [await cluster.read(work.one, each) for each in work.topics] == [
            [b"new"],
            [b"before"],
        ]

    cluster.call(cut())


def test_a_coordinator_on_its_way_is_waited_for(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def begin() -> Transaction:
        older = await work.worker(work.two)
        txn = await older.begin(1)
        await older.producers[0].send(b"open", txn=txn)
        return txn

    txn = cluster.call(begin())
    partition = COORDINATOR_ASSIGN.partition_at(1)

    async def give_back() -> None:
        await work.two.ownership.release(
            next(b for b in work.two.ownership.owned() if b.holds(partition))
        )

    cluster.world.call(work.two.node, give_back())

    async def fence() -> None:
        newer = await work.worker(work.one, topics=[work.topics[0]])
        assert newer.epoch == 2
        served = [each.coordinators.serving(1) for each in work.brokers]
        assert [each.status(txn.txn_id) for each in served if each] == [TxnStatus.ABORTED]

    cluster.call(fence())


def test_sessions_continue_at_another_broker(cluster: TxnCluster) -> None:
    """Their brokers stop; the reconnecting sessions do not count as newer ones."""
    work = Work(cluster)

    async def open_worker() -> Worker:
        return await work.worker(work.one)

    worker = cluster.call(open_worker())
    cluster.world.call(work.two.node, work.two.broker.stop())
    cluster.crash(work.two)

    async def go_on() -> None:
        for producer in worker.producers:
            await producer.send(b"on")
        assert worker.epoch == 1
        assert [await cluster.read(work.one, each) for each in work.topics] == [[b"on"], [b"on"]]

    cluster.call(go_on())


def test_a_broker_that_cannot_fence_keeps_ids_out(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def keep_out() -> None:
        older = await work.worker(work.two, topics=[work.topics[1]])
        peers = work.one.transactions.peers

        async def unknown(broker: object) -> bool:
            return False

        peers.fences_sessions = unknown  # type: ignore[method-assign]
        with pytest.raises(NotAllowed, match="localhost:6651 is in the cluster"):
            await work.worker(work.one, topics=[work.topics[0]])
        await older.producers[0].send(b"on")  # the session was not fenced
        assert _epoch(work.one) == older.epoch == 1

    cluster.call(keep_out())


def test_a_fenced_member_does_not_commit_with_its_group(cluster: TxnCluster) -> None:
    work = Work(cluster)

    async def commit() -> None:
        older = await work.worker(work.one)
        leader = await cluster.begin(work.one)
        member = await older.begin(1 - leader.txn_id.most)
        await older.producers[0].send(b"member", txn=member)
        await work.worker(work.two, topics=[work.topics[1]])
        with pytest.raises(InvalidTxnStatus, match="fenced"):
            await leader.commit(together_with=[member.txn_id])
        assert await work.read() == [[], []]

    cluster.call(commit())


def test_a_session_that_begins_on_two_brokers_at_once_does_not_fence_itself(
    cluster: TxnCluster,
) -> None:
    """Each of the brokers still has the older session."""
    work = Work(cluster)

    async def begin() -> None:
        older = await work.worker()
        client = cluster.client_at(work.one)
        second = {"txn.transactional.id": ID, "txn.session": "second"}
        producers = await asyncio.gather(
            *(client.create_producer(topic, properties=second) for topic in work.topics)
        )
        for producer in producers:
            await producer.send(b"new")
        assert _epoch(work.one) == 2
        for zombie in older.producers:
            with pytest.raises(ProducerFenced):
                await zombie.send(b"zombie")
        assert await work.read() == [[b"new"], [b"new"]]

    cluster.call(begin())
