"""Transactions with coordinators on different brokers commit by one decision, or not at all."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    PulsarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName, TxnId
from pybroker.client.aio import Transaction
from pybroker.transaction.coordinator.group_commits import groups
from pybroker.transaction.coordinator.group_commits.group_ends import GroupEnds
from pybroker.transaction.coordinator.log.transaction_log import TransactionLog
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.slow

BOTH = [[b"invoice"], [b"debit"]]
NONE: list[list[bytes]] = [[], []]
_GROUP = pb.CommandTransactionGroup


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0, transaction_coordinators=2)
    yield cluster
    cluster.close()


class Payment:
    """Broker one serves coordinator 0, broker two coordinator 1. Each coordinator has a transaction
    with a message on a topic of its broker. The first transaction leads.
    """

    def __init__(self, cluster: TxnCluster) -> None:
        self.cluster = cluster
        self.one, self.two = self.brokers = cluster.start("one"), cluster.start("two")
        for number, broker in enumerate(self.brokers):
            cluster.take(broker, COORDINATOR_ASSIGN.partition_at(number))
        self.topics = [cluster.topic_of(broker) for broker in self.brokers]
        self.txns: list[Transaction] = cluster.call(self._begin())
        self.leader, self.member = (each.txn_id for each in self.txns)

    async def _begin(self) -> list[Transaction]:
        payloads, txns = (b"invoice", b"debit"), []
        for broker, topic, payload in zip(self.brokers, self.topics, payloads, strict=True):
            await self.cluster.read(broker, topic)  # the subscription keeps later messages
            client = self.cluster.client_at(broker)
            txn_id = await self._begun_at(broker)
            txn = client.attach_transaction(txn_id)
            await self.cluster.send(broker, topic, payload, txn)
            txns.append(txn)
        return txns

    async def _begun_at(self, broker: TxnBroker) -> TxnId:
        number = self.brokers.index(broker)
        for _ in range(20):  # a client uses its coordinators in turn
            txn = await self.cluster.client_at(broker).new_transaction(60_000)
            if txn.txn_id.most == number:
                return txn.txn_id
            await txn.abort()
        raise AssertionError("no transaction of this coordinator")

    async def commit(self) -> None:
        """Commit like a client that does not know of an earlier attempt."""
        leader = self.cluster.client_at(self.one).attach_transaction(self.leader)
        await leader.commit(together_with=[self.member])

    def start_commit(self) -> None:
        async def commit() -> None:
            with suppress(PulsarError):
                await self.commit()

        self.cluster.client.create_task(commit())

    def requests(self, of: TxnBroker, lost: set[int]) -> list[Any]:
        """Record the broker's later requests about groups; those of `lost` steps do not arrive."""
        peers, sent, request = of.transactions.peers, list[Any](), of.transactions.peers.request

        async def watched(broker: Any, body: Any) -> Any:
            if isinstance(body, _GROUP):
                sent.append(body)
                if body.step in lost:
                    await asyncio.sleep(1)
                    raise ServiceNotReady("no answer")
            return await request(broker, body)

        peers.request = watched  # type: ignore[method-assign]
        return sent

    def status(self, broker: TxnBroker, txn_id: TxnId) -> TxnStatus | None:
        coordinator = broker.coordinators.serving(txn_id.most)
        return None if coordinator is None else coordinator.status(txn_id)

    def is_promised(self) -> bool:
        found = self.two.coordinators.begun(self.member)
        return found is not None and found.promised_to == self.leader

    def read(self, broker: TxnBroker) -> list[list[bytes]]:
        """Read once everything has settled; this broker then serves both topics."""
        self.cluster.world.sleep(30)
        for topic in self.topics:
            self.cluster.take(broker, TopicName.parse(topic))

        async def read() -> list[list[bytes]]:
            return [await self.cluster.read(broker, each) for each in self.topics]

        found: list[list[bytes]] = self.cluster.call(read())
        return found

    def tell(self, broker: TxnBroker, command: Any) -> Any:
        """Send the command from the other broker."""
        teller = self.two if broker is self.one else self.one

        async def told() -> Any:
            address = await teller.ownership.owner_of(
                COORDINATOR_ASSIGN.partition_at(self.brokers.index(broker))
            )
            assert address is not None
            return await teller.transactions.peers.request(address, command)

        return self.cluster.world.call(teller.node, told())

    def step(self, step: int, leader: TxnId, member: TxnId) -> Any:
        return _GROUP(
            step=step,  # type: ignore[arg-type]
            txnid_most_bits=leader.most,
            txnid_least_bits=leader.least,
            member_most=[member.most],
            member_least=[member.least],
        )


def test_all_of_them_commit(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    cluster.call(payment.commit())
    assert payment.status(payment.one, payment.leader) is TxnStatus.COMMITTED
    assert payment.status(payment.two, payment.member) is TxnStatus.COMMITTED
    cluster.call(payment.commit())  # repeated
    cluster.crash(payment.two)
    assert payment.read(payment.one) == BOTH


def test_nothing_commits_if_a_member_was_aborted(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def too_late() -> None:
        await cluster.client_at(payment.two).attach_transaction(payment.member).abort()
        with pytest.raises(InvalidTxnStatus, match="ABORTED"):
            await payment.commit()

    cluster.call(too_late())
    cluster.crash(payment.two)
    assert payment.read(payment.one) == NONE


def test_a_member_that_has_promised_is_free_when_the_leaders_broker_dies_undecided(
    cluster: TxnCluster,
) -> None:
    payment = Payment(cluster)
    request = payment.one.transactions.peers.request

    async def answer_lost(broker: Any, body: Any) -> Any:
        await request(broker, body)
        await asyncio.sleep(3600)

    payment.one.transactions.peers.request = answer_lost  # type: ignore[method-assign]
    payment.start_commit()
    cluster.until(payment.is_promised)
    cluster.crash(payment.one)
    cluster.until(lambda: not payment.is_promised())
    assert payment.status(payment.two, payment.member) is TxnStatus.OPEN
    assert payment.read(payment.two) == NONE


def test_a_member_follows_a_leader_whose_broker_died_when_it_had_decided(
    cluster: TxnCluster,
) -> None:
    payment = Payment(cluster)
    sent = payment.requests(payment.one, {_GROUP.FOLLOW})
    payment.requests(payment.two, {_GROUP.VERDICT})
    payment.start_commit()
    cluster.until(lambda: any(each.step == _GROUP.FOLLOW for each in sent))
    assert payment.is_promised()
    cluster.crash(payment.one)
    assert payment.read(payment.two) == BOTH


def test_members_whose_broker_dies_follow_on_the_next_one(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    sent = payment.requests(payment.one, {_GROUP.FOLLOW})
    payment.requests(payment.two, {_GROUP.VERDICT})
    payment.start_commit()
    cluster.until(lambda: any(each.step == _GROUP.FOLLOW for each in sent))
    cluster.crash(payment.two)
    assert payment.read(payment.one) == BOTH


def test_a_coordinator_that_has_a_successor_releases_nobody(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    former = payment.one.coordinators.serving(0)
    assert former is not None
    released = payment.step(_GROUP.VERDICT, payment.leader, payment.member)
    answer = payment.tell(payment.one, released)
    assert list(answer.verdict) == [pb.CommandTransactionGroupResponse.RELEASED]

    async def succeed() -> None:
        """A successor opens the log; the broker of the former coordinator does not know it yet."""
        broker = payment.two.broker
        log = await payment.two.coordinators.open_log(
            0, payment.two.broker.coordinators._factory, broker.coordinators._metadata
        )
        assert isinstance(log, TransactionLog)
        await log.close()

    cluster.world.call(payment.two.node, succeed())
    with pytest.raises(TransactionCoordinatorNotFound):
        payment.tell(payment.one, released)


def test_a_coordinator_does_not_follow_with_what_it_does_not_know(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    later = TxnId(payment.member.most, payment.member.least + 1)
    with pytest.raises(TransactionNotFound, match="not begun here"):
        payment.tell(payment.two, payment.step(_GROUP.FOLLOW, payment.leader, later))


def test_nobody_follows_a_leader_that_has_not_decided(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    with pytest.raises(ServiceNotReady, match="has not joined"):
        payment.tell(payment.two, payment.step(_GROUP.FOLLOW, payment.leader, payment.member))
    assert payment.status(payment.two, payment.member) is TxnStatus.OPEN


def test_a_promise_to_a_coordinator_that_does_not_exist_is_refused(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    for leader in (TxnId(2, 0), TxnId(1, 0)):
        with pytest.raises(NotAllowed, match="cannot lead"):
            payment.tell(payment.two, payment.step(_GROUP.PROMISE, leader, payment.member))
    assert not payment.is_promised()


def test_members_are_named_completely(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    half = payment.step(_GROUP.PROMISE, payment.leader, payment.member)
    half.member_most.append(1)
    with pytest.raises(NotAllowed, match="equally many"):
        payment.tell(payment.two, half)


def test_an_answer_about_an_earlier_promise_does_not_release_a_later_one(
    cluster: TxnCluster,
) -> None:
    payment = Payment(cluster)
    coordinator = payment.two.coordinators.serving(1)
    assert coordinator is not None
    ends: GroupEnds = coordinator.group_ends
    local_id = payment.member.least

    async def promise_twice() -> None:
        await ends.promise([local_id], payment.leader, None)
        earlier = dict(ends.pledges)
        await ends.promise([local_id], payment.leader, None)
        ends.conclude(earlier, {local_id: False})
        assert payment.is_promised()
        ends.conclude(dict(ends.pledges), {local_id: False})
        assert not payment.is_promised()

    cluster.world.call(payment.two.node, promise_twice())


def test_a_leader_whose_coordinator_was_opened_again_decides_nothing(cluster: TxnCluster) -> None:
    payment = Payment(cluster)
    promise = payment.one.transactions.peers.request
    bundle = next(
        each
        for each in payment.one.ownership.owned()
        if each.holds(COORDINATOR_ASSIGN.partition_at(0))
    )

    async def promised_meanwhile(broker: Any, body: Any) -> Any:
        answer = await promise(broker, body)
        await payment.one.coordinators.release(0)
        await payment.one.coordinators.get(0)
        return answer

    async def commit() -> None:
        with pytest.raises(TransactionCoordinatorNotFound):
            await payment.one.coordinators.groups.commit(payment.leader, [payment.member], None)

    payment.one.transactions.peers.request = promised_meanwhile  # type: ignore[method-assign]
    cluster.world.call(payment.one.node, commit())
    assert payment.one.ownership.owned().count(bundle) == 1
    assert payment.status(payment.one, payment.leader) is TxnStatus.OPEN


def test_what_takes_long_to_end_is_asked_about_again(
    cluster: TxnCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_FOLLOWED_WITHIN_S", 0.0)
    payment = Payment(cluster)
    sent = payment.requests(payment.one, set())
    cluster.call(payment.commit())
    assert payment.status(payment.two, payment.member) is TxnStatus.COMMITTED
    assert sum(each.step == _GROUP.FOLLOW for each in sent) > 1


def test_a_broker_that_cannot_commit_with_others_is_named(cluster: TxnCluster) -> None:
    payment = Payment(cluster)

    async def apaches(broker: Any) -> bool:
        return False

    payment.one.transactions.peers.joins_groups = apaches  # type: ignore[method-assign]

    async def commit() -> None:
        with pytest.raises(NotAllowed, match="coordinator 1 and cannot commit together"):
            await payment.commit()

    cluster.call(commit())
