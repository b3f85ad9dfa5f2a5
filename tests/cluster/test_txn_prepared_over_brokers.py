"""A prepared transaction moves with its coordinator, and holds on the topics of both brokers."""

from collections.abc import Iterator
from typing import Any

import pytest
from rest import Rest
from txn_cluster import COORDINATOR, TxnBroker, TxnCluster

from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TopicName, TxnId
from pybroker.client.aio import Transaction


@pytest.fixture(params=range(2))
def cluster(request: Any) -> Iterator[TxnCluster]:
    cluster = TxnCluster(request.param, serves_http=True)
    yield cluster
    cluster.close()


class Prepared:
    """Broker one serves the coordinator; there is a message on a topic of each broker."""

    def __init__(self, cluster: TxnCluster) -> None:
        self.cluster = cluster
        self.one, self.two = cluster.start("one"), cluster.start("two")
        cluster.serve_coordinator(self.one)
        self.topics = [cluster.topic_of(self.one), cluster.topic_of(self.two)]
        self.txn_id: TxnId = cluster.call(self._prepare())

    async def _prepare(self) -> TxnId:
        txn: Transaction = await self.cluster.begin(self.one, timeout_ms=60_000)
        for broker, topic in zip((self.one, self.two), self.topics, strict=True):
            await self.cluster.read(broker, topic)  # the subscription keeps later messages
            await self.cluster.send(broker, topic, b"in", txn)
        await txn.prepare("db")
        return txn.txn_id

    def crash_its_coordinator(self) -> None:
        """Broker two takes over, and all timeouts pass."""
        self.cluster.crash(self.one)
        for name in (COORDINATOR, *map(TopicName.parse, self.topics)):
            self.cluster.take(self.two, name)
        self.cluster.world.sleep(120)

    def read(self, broker: TxnBroker) -> list[list[bytes]]:
        async def read() -> list[list[bytes]]:
            return [await self.cluster.read(broker, each) for each in self.topics]

        found: list[list[bytes]] = self.cluster.call(read())
        return found


@pytest.mark.parametrize("commits", [True, False])
def test_its_owner_decides_after_its_coordinator_has_moved(
    cluster: TxnCluster, commits: bool
) -> None:
    prepared = Prepared(cluster)
    prepared.crash_its_coordinator()
    assert prepared.read(prepared.two) == [[], []]

    async def decide() -> None:
        client = cluster.client_at(prepared.two)
        (left,) = await client.prepared_transactions("db")
        assert left.txn_id == prepared.txn_id
        txn = client.attach_transaction(left.txn_id)
        await (txn.commit() if commits else txn.abort())

    cluster.call(decide())
    cluster.world.sleep(10)
    assert prepared.read(prepared.two) == ([[b"in"], [b"in"]] if commits else [[], []])


def test_each_broker_lists_it(cluster: TxnCluster) -> None:
    prepared = Prepared(cluster)
    for broker in (prepared.one, prepared.two):
        found = Rest(cluster, broker).get("v3/transactions/live", state="PREPARED")
        (only,) = found["transactions"]
        assert TxnId(*map(int, only["txnId"].strip("()").split(","))) == prepared.txn_id
        assert (only["preparedName"], only["topicCount"]) == ("db", 2)


def test_nothing_joins_it_from_another_broker(cluster: TxnCluster) -> None:
    prepared = Prepared(cluster)

    async def join() -> None:
        late = cluster.client_at(prepared.two).attach_transaction(prepared.txn_id)
        with pytest.raises(InvalidTxnStatus, match="PREPARED, not OPEN"):
            await cluster.send(prepared.two, prepared.topics[1], b"late", late)

    cluster.call(join())
