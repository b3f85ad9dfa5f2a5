"""Transactional producers that another broker has, driven with values: what is asked, and when."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pybroker.base.errors import TransactionCoordinatorNotFound
from pybroker.base.names import TopicName, TxnId
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.kafka.transactions import remote_producers
from pybroker.kafka.transactions.for_brokers import answer
from pybroker.kafka.transactions.live_producer import Claim
from pybroker.kafka.transactions.remote_producers import Part, RemoteProducers
from pybroker.kafka.transactions.surroundings import TxnClient
from pybroker.kafka.transactions.values import ProducerKey
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

TXN, ORDERS = TxnId(3, 7), TopicName.parse("orders")
TOPIC, GROUP = Part(ORDERS), Part(None, "g")
CLAIM = Claim(TransactionalId("ada", "payments"), ProducerKey(9, 1))
CLIENT = TxnClient("ada", "ada", "peer", "theirs")


class Elsewhere:
    """Coordinators of other brokers, and what they are told; the answer is always TXN."""

    def __init__(self) -> None:
        self.asked: list[Part] = []
        self.told: list[Any] = []
        self.state: TxnStatus | None = TxnStatus.OPEN
        self.parts = {str(ORDERS), str(topic_of_group("g"))}
        clock: Any = SimpleNamespace(monotonic_s=lambda: 5.0)
        here: Any = self
        self.producers = RemoteProducers(self.ask, here, clock)

    async def ask(self, client: TxnClient, claim: Claim, part: Part, adds: bool) -> TxnId:
        self.asked.append(part)
        return TXN

    def remote(self, number: int) -> Any:
        assert number == TXN.most
        return SimpleNamespace(told_open=lambda *said: self.told.append(said))

    def status(self, txn_id: TxnId) -> TxnStatus:
        if self.state is None:
            raise TransactionCoordinatorNotFound("elsewhere")
        return self.state

    def has_partition(self, txn_id: TxnId, topic: str) -> bool:
        return topic in self.parts

    def has_subscription(self, txn_id: TxnId, topic: str, group: str) -> bool:
        return topic in self.parts and group == "g"

    def asks(self, part: Part) -> TxnId:
        return asyncio.run(self.producers.ask(CLIENT, CLAIM, part, True))


@pytest.mark.parametrize("part", [TOPIC, GROUP])
def test_a_producer_is_asked_for_once_for_each_part_while_it_is_open(part: Part) -> None:
    there = Elsewhere()
    assert there.producers.known(CLAIM, part) is None
    assert there.asks(part) == TXN
    assert there.told == [(part.of(TXN), "ada", 5.0)]
    assert there.producers.known(CLAIM, part) == TXN
    assert there.producers.known(CLAIM, GROUP if part is TOPIC else TOPIC) is None
    newer = Claim(CLAIM.id, ProducerKey(9, 2))
    assert there.producers.known(newer, part) is None
    for ended in (TxnStatus.COMMITTING, None):
        there.state = ended
        assert there.producers.known(CLAIM, part) is None
    there.state = TxnStatus.OPEN
    there.parts.clear()
    assert there.producers.known(CLAIM, part) is None


def test_what_has_changed_while_it_was_asked_is_asked_again() -> None:
    there = Elsewhere()
    for state, parts in ((TxnStatus.ABORTING, there.parts), (TxnStatus.OPEN, set())):
        there.state, there.parts = state, parts
        with pytest.raises(KafkaError) as refused:
            there.asks(TOPIC)
        assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_answers_are_kept_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_producers, "_MOST_KNOWN", 1)
    there = Elsewhere()
    there.asks(TOPIC)
    there.asks(GROUP)
    assert there.producers.known(CLAIM, TOPIC) is None
    assert there.producers.known(CLAIM, GROUP) == TXN


def test_parts_are_shown_and_named() -> None:
    assert (str(TOPIC), str(GROUP)) == (str(ORDERS), "g")
    assert TOPIC.of(TXN).topic == str(ORDERS)
    assert GROUP.of(TXN).topic == str(topic_of_group("g"))


@pytest.mark.parametrize("is_topic", [True, False])
def test_another_broker_is_answered_with_the_transaction_or_why_not(is_topic: bool) -> None:
    asked: list[Any] = []
    error: list[KafkaError] = []

    async def take_part(*said: Any) -> TxnId:
        asked.append(said)
        if error:
            raise error[0]
        return TXN

    transactions: Any = SimpleNamespace(take_part=take_part)
    command = pb.CommandKafkaTransaction(
        request_id=4,
        transactional_id="payments",
        producer_id=9,
        producer_epoch=1,
        adds=True,
        peer="peer",
        client_version="theirs",
        owner="ada",
        principal="ada",
    )
    if is_topic:
        command.topic = str(ORDERS)
    else:
        command.group = "g"
    found = asyncio.run(answer(transactions, command))
    assert asked == [(CLIENT, CLAIM, TOPIC if is_topic else GROUP, True)]
    assert (found.request_id, found.txnid_most_bits, found.txnid_least_bits) == (4, *TXN)
    assert not found.HasField("kafka_error")
    error.append(KafkaError(ErrorCode.PRODUCER_FENCED, "a newer one"))
    found = asyncio.run(answer(transactions, command))
    assert (found.kafka_error, found.message) == (ErrorCode.PRODUCER_FENCED, "a newer one")
    command.ClearField("owner")
    command.ClearField("principal")
    asyncio.run(answer(transactions, command))
    client, claim, *_ = asked[-1]
    assert (client.owner, client.principal, claim.id.owner) == (None, None, None)
