"""Bookies die and have no replacement: ledgers continue without one, and end without two.
Transactions and topics are not affected.
"""

import pytest
from txn_cluster import COORDINATOR, TxnBroker, TxnCluster

from managed_ledger.ledger import ManagedLedger
from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.base.names import TopicName
from pybroker.client.aio import Transaction

THREE_BOOKIES = 0  # a seed with no more than three
PATIENCE_S = 60.0


def cluster_of_three(seed: int = THREE_BOOKIES) -> TxnCluster:
    cluster = TxnCluster(seed, quorums=Quorums(3, 3, 2))
    assert len(cluster.life.disks) == 3, "else another bookie takes its place"
    return cluster


class Orders:
    """A broker with the coordinator and a topic, and a client."""

    def __init__(self, cluster: TxnCluster) -> None:
        self.cluster = cluster
        self.broker: TxnBroker = cluster.start("one")
        cluster.serve_coordinator(self.broker)
        self.topic = cluster.topic_of(self.broker)
        cluster.call(cluster.read(self.broker, self.topic))

    async def commit(self, payload: bytes) -> Transaction:
        """A whole transaction with one message."""
        txn = await self.cluster.begin(self.broker)
        await self.cluster.send(self.broker, self.topic, payload, txn)
        await txn.commit()
        return txn

    async def acknowledge(self) -> list[bytes]:
        """Acknowledge the topic's first message in a transaction."""
        txn = await self.cluster.begin(self.broker)
        consumer = await self.cluster.consumer(self.broker, self.topic, "pending")
        message = await consumer.receive()
        await consumer.acknowledge(message, txn)
        await txn.commit()
        await consumer.close()
        return [message.data()]

    @property
    def coordinator(self) -> object:
        return self.broker.coordinators.serving(0)


def lose_a_bookie(cluster: TxnCluster, number: int = 0, for_s: float = PATIENCE_S) -> None:
    cluster.life.crash_bookie(sorted(cluster.life.disks)[number], False, for_s)


@pytest.mark.parametrize("bookie", range(3))
def test_ledgers_go_on_without_one_bookie(bookie: int) -> None:
    cluster = cluster_of_three()
    try:
        orders = Orders(cluster)
        cluster.call(orders.commit(b"before"))
        ledgers = log_of_coordinator(orders).ledgers()
        lose_a_bookie(cluster, bookie)
        cluster.call(orders.commit(b"after"))
        found = [each.ledger_id for each in log_of_coordinator(orders).ledgers()]
        assert found == [each.ledger_id for each in ledgers]
        assert cluster.call(cluster.read(orders.broker, orders.topic)) == [b"before", b"after"]
    finally:
        cluster.close()


@pytest.mark.parametrize("bookie", range(3))
def test_a_coordinator_goes_on_when_its_log_loses_two_bookies(bookie: int) -> None:
    cluster = cluster_of_three()
    try:
        orders = Orders(cluster)
        begun = cluster.call(cluster.begin(orders.broker))
        cluster.call(cluster.send(orders.broker, orders.topic, b"begun before", begun))
        served, (ledger,) = orders.coordinator, log_of_coordinator(orders).ledgers()
        lose_a_bookie(cluster, bookie, for_s=0.1)
        cluster.call(begun.commit())
        cluster.call(orders.commit(b"between"))
        lose_a_bookie(cluster, (bookie + 1) % 3)
        cluster.call(orders.commit(b"begun after"))
        cluster.call(orders.acknowledge())
        assert orders.coordinator is served
        assert [each.ledger_id for each in log_of_coordinator(orders).ledgers()][1:]
        assert log_of_coordinator(orders).ledgers()[0].ledger_id == ledger.ledger_id
        found = cluster.call(cluster.read(orders.broker, orders.topic))
        assert found == [b"begun before", b"between", b"begun after"]
    finally:
        cluster.close()


def log_of_coordinator(orders: Orders) -> ManagedLedger:
    log = orders.broker.broker.ledgers.opened("pulsar/system/persistent/__transaction_log_0")
    assert log is not None
    return log


def test_what_was_under_way_when_bookies_died_is_there_after_a_crash() -> None:
    cluster = cluster_of_three()
    try:
        orders = Orders(cluster)
        cluster.call(orders.commit(b"0"))
        for number in range(1, 4):
            lose_a_bookie(cluster, number % 3, for_s=0.5)
            cluster.call(orders.commit(b"%d" % number))
        cluster.crash(orders.broker)
        heir = cluster.start("two")
        cluster.take(heir, COORDINATOR)
        cluster.take(heir, TopicName.parse(orders.topic))
        assert cluster.call(cluster.read(heir, orders.topic)) == [b"0", b"1", b"2", b"3"]
        heirs = heir.coordinators
        cluster.until(lambda: heirs.serving(0) is not None and not heirs.serving(0).live())
    finally:
        cluster.close()
