"""A transaction on topics of two brokers commits everywhere or nowhere."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from rest import Rest
from txn_cluster import COORDINATOR, TxnBroker, TxnCluster

from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    PulsarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
)
from pybroker.base.names import TopicName
from pybroker.client.aio import Transaction
from pybroker.cluster.transactions.peers import ANSWER_S
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb


@pytest.fixture(params=range(2))
def cluster(request: Any) -> Iterator[TxnCluster]:
    cluster = TxnCluster(request.param)
    yield cluster
    cluster.close()


class Payment:
    """An open transaction of broker one's coordinator, with a message on a topic of each broker."""

    def __init__(self, cluster: TxnCluster) -> None:
        self.cluster = cluster
        self.one, self.two = cluster.start("one"), cluster.start("two")
        cluster.serve_coordinator(self.one)
        self.here, self.there = cluster.topic_of(self.one), cluster.topic_of(self.two)
        self.txn: Transaction = cluster.call(self._begin())

    async def _begin(self) -> Transaction:
        for broker, topic in ((self.one, self.here), (self.two, self.there)):
            await self.cluster.read(broker, topic)  # the subscription keeps later messages
        txn = await self.cluster.begin(self.one)
        await self.cluster.send(self.one, self.here, b"invoice", txn)
        await self.cluster.send(self.two, self.there, b"debit", txn)
        return txn

    def hold_ends(self, of: TxnBroker) -> asyncio.Event:
        """Lose the broker's requests to others from now on; the event is set by the first."""
        peers, asked = of.transactions.peers, asyncio.Event()

        async def hold(broker: Any, body: Any) -> None:
            asked.set()
            await asyncio.sleep(ANSWER_S)
            raise ServiceNotReady("no answer")

        peers.request = hold  # type: ignore[method-assign, assignment]
        return asked

    def decide(self) -> None:
        """Make the decision to commit durable; the other broker does not learn of it."""
        asked = self.hold_ends(self.one)
        self.cluster.client.create_task(_ended(self.txn))
        self.cluster.until(asked.is_set)

    def read(self, broker: TxnBroker) -> list[list[bytes]]:
        """Read once everything has settled; this broker then serves both topics."""
        self.cluster.world.sleep(30)
        for topic in (self.here, self.there):
            self.cluster.take(broker, TopicName.parse(topic))

        async def read() -> list[list[bytes]]:
            return [await self.cluster.read(broker, each) for each in (self.here, self.there)]

        found: list[list[bytes]] = self.cluster.call(read())
        return found


async def _ended(txn: Transaction) -> None:
    """Commit; the answer does not arrive."""
    with suppress(PulsarError):
        await txn.commit()


BOTH = [[b"invoice"], [b"debit"]]
NONE: list[list[bytes]] = [[], []]


@pytest.mark.slow
def test_a_commit_is_seen_on_the_topics_of_both_brokers(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def pay() -> None:
        one, two = payment.one, payment.two
        assert await cluster.read(two, payment.there, "before") == []
        await payment.txn.commit()
        assert await cluster.read(one, payment.here) == [b"invoice"]
        assert await cluster.read(two, payment.there) == [b"debit"]

    cluster.call(pay())


@pytest.mark.slow
def test_an_abort_is_followed_by_both_brokers(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def refuse() -> None:
        one, two = payment.one, payment.two
        await payment.txn.abort()
        await cluster.send(one, payment.here, b"plain")
        await cluster.send(two, payment.there, b"plain")
        assert await cluster.read(one, payment.here) == [b"plain"]
        assert await cluster.read(two, payment.there) == [b"plain"]

    cluster.call(refuse())


def test_a_timeout_is_followed_by_both_brokers(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def forget() -> None:
        late = await cluster.begin(payment.one, timeout_ms=1000)
        await cluster.send(payment.two, payment.there, b"late", late)
        await payment.txn.commit()
        assert await cluster.read(payment.two, payment.there) == [b"debit"]

    cluster.call(forget())


@pytest.mark.slow
def test_acknowledgements_elsewhere_commit_with_messages_here(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def consume() -> None:
        one, two = payment.one, payment.two
        await cluster.send(two, payment.there, b"order")
        await payment.txn.abort()
        orders = await cluster.consumer(two, payment.there, "billing")
        for end, left in ((Transaction.abort, [b"order"]), (Transaction.commit, [])):
            txn, order = await cluster.begin(one), await orders.receive()
            await orders.acknowledge(order, txn)
            await cluster.send(one, payment.here, b"invoice", txn)
            await end(txn)
            await orders.close()
            assert await cluster.read(two, payment.there, "billing") == left
            orders = await cluster.consumer(two, payment.there, "billing")
        assert await cluster.read(one, payment.here) == [b"invoice"]

    cluster.call(consume())


def test_nothing_is_sent_after_the_end(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def send_late() -> None:
        producer = await cluster.client_at(payment.two).create_producer(payment.there)
        await payment.txn.commit()
        await asyncio.sleep(1)
        known = cluster.client_at(payment.one)._transactions()
        # This client lets the broker add topics.
        late = known.attach(payment.txn.txn_id, "public/default")
        with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
            await producer.send(b"late", txn=late)
        assert not payment.two.coordinators.remote(0)._questions  # the broker knew already
        assert await cluster.read(payment.two, payment.there) == [b"debit"]

    cluster.call(send_late())


def test_a_coordinator_elsewhere_is_not_served_here(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def begin_there() -> None:
        await payment.two.coordinators.get(0)

    with pytest.raises(TransactionCoordinatorNotFound):
        cluster.world.call(payment.two.node, begin_there())


def test_an_end_that_a_broker_without_the_bundle_gets_is_refused(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    least, most = payment.txn.txn_id.least, payment.txn.txn_id.most
    end = pb.CommandEndTxnOnPartition(
        topic=payment.there, txnid_least_bits=least, txnid_most_bits=most, txn_action=pb.ABORT
    )

    async def tell_the_wrong_one() -> None:
        there = TopicName.parse(payment.here)
        owner = await payment.two.ownership.owner_of(there)
        assert owner is not None
        await payment.two.transactions.peers.request(owner, end)

    with pytest.raises(ServiceNotReady, match="not served"):
        cluster.world.call(payment.two.node, tell_the_wrong_one())


def test_an_end_that_was_not_decided_is_refused(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    least, most = payment.txn.txn_id.least, payment.txn.txn_id.most
    end = pb.CommandEndTxnOnPartition(
        topic=payment.there, txnid_least_bits=least, txnid_most_bits=most, txn_action=pb.COMMIT
    )

    async def forge() -> None:
        owner = await payment.one.ownership.owner_of(TopicName.parse(payment.there))
        assert owner is not None
        await payment.one.transactions.peers.request(owner, end)

    with pytest.raises(InvalidTxnStatus, match="did not decide"):
        cluster.world.call(payment.one.node, forge())


def test_a_transaction_that_spans_a_namespace_takes_topics_of_other_brokers(
    cluster: TxnCluster,
) -> None:
    payment = Payment(cluster)

    async def span() -> None:
        one, two = payment.one, payment.two
        await payment.txn.abort()
        orders = await cluster.consumer(two, payment.there, "billing")
        await cluster.send(two, payment.there, b"order")
        order = await orders.receive()
        txn = await cluster.client_at(one).new_transaction(namespace="public/default")
        await cluster.send(two, payment.there, b"debit", txn)
        await orders.acknowledge(order, txn)
        begun = one.coordinators.begun(txn.txn_id)
        assert begun is not None
        assert list(begun.partitions) == [payment.there]
        assert list(begun.subscriptions) == [(payment.there, "billing")]
        await txn.commit()
        await orders.close()
        assert await cluster.read(two, payment.there, "billing") == [b"debit"]

    cluster.call(span())


def test_bundles_that_move_take_open_transactions_along(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    there = TopicName.parse(payment.there)

    async def give_back() -> None:
        for bundle in payment.two.ownership.owned():
            await payment.two.ownership.release(bundle)

    cluster.world.call(payment.two.node, give_back())
    cluster.take(payment.one, there)
    cluster.call(cluster.send(payment.one, payment.there, b"credit", payment.txn))
    cluster.call(payment.txn.commit())
    assert payment.read(payment.one) == [[b"invoice"], [b"debit", b"credit"]]


def test_a_coordinator_that_moves_takes_its_transactions_along(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def give_back() -> None:
        for bundle in payment.one.ownership.owned():
            if bundle.holds(COORDINATOR):
                await payment.one.ownership.release(bundle)

    cluster.world.call(payment.one.node, give_back())
    cluster.take(payment.two, COORDINATOR)
    moved = cluster.client_at(payment.two).attach_transaction(payment.txn.txn_id)
    cluster.call(cluster.send(payment.one, payment.here, b"lamp", moved))
    cluster.call(moved.commit())
    cluster.call(_reads(cluster, payment.one, payment.here, [b"invoice", b"lamp"]))
    cluster.call(_reads(cluster, payment.two, payment.there, [b"debit"]))


async def _reads(cluster: TxnCluster, broker: TxnBroker, topic: str, wanted: list[bytes]) -> None:
    assert await cluster.read(broker, topic) == wanted


def test_an_end_that_is_not_answered_is_repeated(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    ending = payment.one.transactions.peers.request
    payment.decide()
    cluster.world.sleep(60)
    assert payment.one.coordinators.begun(payment.txn.txn_id) is not None
    payment.one.transactions.peers.request = ending  # type: ignore[method-assign]
    cluster.until(lambda: payment.one.coordinators.begun(payment.txn.txn_id) is None)
    cluster.call(_reads(cluster, payment.two, payment.there, [b"debit"]))


# Limits


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("max_participants_per_connection", "maxParticipantsPerConnection"),
        ("max_participants_per_transaction", "maxParticipantsPerTransaction"),
        ("max_active_transactions_per_namespace", "active transactions take part in"),
    ],
)
def test_the_application_hears_at_once_that_there_is_no_room_to_join(limit: str, why: str) -> None:
    cluster = TxnCluster(0, **{limit: 1})
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(one)
    topics = [cluster.topic_of(two) + f"-{number}" for number in range(40)]
    there = [each for each in topics if two.ownership.owns(TopicName.parse(each))][:2]

    async def join() -> None:
        client = cluster.client_at(two)
        of_namespace = limit == "max_active_transactions_per_namespace"
        first = await client.new_transaction(namespace="public/default")
        second = await client.new_transaction(namespace="public/default") if of_namespace else first
        sinks = [await client.create_producer(each) for each in there]
        await sinks[0].send(b"fits", txn=first)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(NotAllowed, match=why):
            await sinks[1].send(b"too much", txn=second)
        assert asyncio.get_running_loop().time() - began_s < 2, "it is not asked about again"
        await first.abort()

    cluster.call(join())
    cluster.close()


# Kills


def test_a_participants_broker_dies_between_the_decision_and_its_end(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    ending = payment.one.transactions.peers.request
    payment.decide()
    cluster.crash(payment.two)
    payment.one.transactions.peers.request = ending  # type: ignore[method-assign]
    assert payment.read(payment.one) == BOTH


def test_the_coordinators_broker_dies_after_the_decision(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    payment.decide()
    cluster.crash(payment.one)
    assert payment.read(payment.two) == BOTH


def test_a_coordinator_without_a_broker_finds_one_without_any_client(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    payment.decide()
    cluster.crash(payment.one)
    cluster.crash(payment.two)
    three, txn_id = cluster.start("three"), payment.txn.txn_id
    cluster.until(lambda: three.coordinators.serving(0) is not None)
    cluster.until(lambda: three.coordinators.status(txn_id) is TxnStatus.COMMITTED)


@pytest.mark.slow
def test_the_coordinators_broker_dies_before_the_decision(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    cluster.crash(payment.one)
    assert payment.read(payment.two) == NONE
    cluster.world.sleep(60)  # the transaction times out
    assert payment.read(payment.two) == NONE


@pytest.mark.slow
def test_both_brokers_die_after_the_decision(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    payment.decide()
    cluster.crash(payment.one)
    cluster.crash(payment.two)
    three = cluster.start("three")
    assert payment.read(three) == BOTH


@pytest.mark.slow
@pytest.mark.parametrize("deletes_at", ["one", "two"])
def test_a_transaction_ends_although_the_namespace_of_its_topic_was_deleted(
    deletes_at: str,
) -> None:
    cluster = TxnCluster(0, serves_http=True)
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(one)
    rest = Rest(cluster, one if deletes_at == "one" else two)
    rest.do("PUT", "v2/tenants/acme", b'{"allowedClusters": ["standalone"]}')
    rest.do("PUT", "v2/namespaces/acme/shop")
    topic = "persistent://acme/shop/orders"

    async def work() -> Transaction:
        consumer = await cluster.consumer(one, topic, "reads")
        await cluster.send(one, topic, b"invoice")
        txn = await cluster.begin(one, timeout_ms=600_000)
        await consumer.acknowledge(await consumer.receive(), txn=txn)
        await cluster.send(one, topic, b"paid", txn)
        await consumer.close()
        return txn

    txn = cluster.call(work())
    rest.do("DELETE", "v2/namespaces/acme/shop", force="true")
    cluster.call(txn.commit())
    cluster.close()
