"""A newer session of a transactional id fences the older ones: identities and refusals."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from credentials import TOKEN_SETTINGS, token
from raw_client import RawClient

import pybroker.testing
from pybroker.base.errors import (
    AuthorizationError,
    InvalidTxnStatus,
    NotAllowed,
    ProducerFenced,
)
from pybroker.base.names import TopicName, TxnId
from pybroker.process.app import Broker
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
FENCED, INVALID = ProducerFenced.code, InvalidTxnStatus.code
Connect = Callable[..., RawClient]


@pytest.fixture
def name(topic: str) -> str:
    return topic.rpartition("/")[2]


def ask(
    raw: RawClient, topic: str, name: str, number: int = 1, session: str = "", **fields: Any
) -> Any:
    metadata = [pb.KeyValue(key="txn.transactional.id", value=name)]
    if session:
        metadata.append(pb.KeyValue(key="txn.session", value=session))
    return raw.ask_for_producer(topic, number, metadata=metadata, **fields)


def produce(raw: RawClient, topic: str, name: str, number: int = 1, **fields: Any) -> int:
    """Creates the producer; returns the topic epoch that the client would send back."""
    answer = ask(raw, topic, name, number, **fields)
    assert isinstance(answer, pb.CommandProducerSuccess), answer
    return int(answer.topic_epoch)


def epoch(topic_epoch: int) -> int:
    return topic_epoch >> 32


def begin(raw: RawClient, name: str, session: str = "", session_epoch: int = 0) -> Any:
    body = pb.CommandNewTxn(
        txn_ttl_millis=60_000,
        tc_id=0,
        transactional_id=name,
        session=session,
        session_epoch=session_epoch,
    )
    return raw.request(_T.NEW_TXN, "newTxn", body)


def id_of(answer: Any) -> TxnId:
    assert not answer.HasField("error"), answer
    return TxnId(answer.txnid_most_bits, answer.txnid_least_bits)


def visible(raw: RawClient, topic: str, count: int) -> list[bytes]:
    raw.subscribe(topic, 77, subscription="reader")
    raw.flow(100, 77)
    payloads = []
    for _ in range(count):
        raw.receive(_T.MESSAGE)
        payloads.append(raw.entry[-1:])
    assert raw.waiting_messages() == 0
    return payloads


def assert_fenced(answer: Any) -> None:
    assert answer.error == FENCED, answer
    assert "newer session of transactional id" in answer.message


def test_a_second_client_is_a_newer_session(connect: Connect, topic: str, name: str) -> None:
    older, newer = connect(), connect()
    assert epoch(produce(older, topic, name)) == 1
    assert epoch(produce(newer, topic, name)) == 2
    assert older.receive(_T.CLOSE_PRODUCER).producer_id == 1


def test_the_older_session_s_producer_may_not_come_back(
    connect: Connect, topic: str, name: str
) -> None:
    older, newer = connect(), connect()
    told = produce(older, topic, name)
    produce(newer, topic, name)
    older.receive(_T.CLOSE_PRODUCER)
    assert_fenced(ask(older, topic, name, topic_epoch=told, epoch=1))
    assert_fenced(ask(older, topic, name, epoch=1))
    again = connect()
    assert_fenced(ask(again, topic, name, topic_epoch=told, epoch=2))
    assert newer.kinds_before_pong() == []


def test_a_plain_message_of_a_fenced_session_is_not_stored(
    connect: Connect, topic: str, name: str
) -> None:
    older, newer = connect(), connect()
    produce(older, topic, name)
    older.publish(b"1", 0)
    produce(newer, topic, name)
    newer.publish(b"2", 0)
    older.start_publish(b"3", 1)
    older.receive(_T.CLOSE_PRODUCER)
    older.kinds_before_pong()
    newer.publish(b"4", 1)
    assert visible(newer, topic, 3) == [b"1", b"2", b"4"]


def test_an_open_transaction_of_the_older_session_is_aborted(
    connect: Connect, topic: str, name: str
) -> None:
    older, newer = connect(), connect()
    produce(older, topic, name)
    txn = older.new_txn()
    older.add_partition(txn, topic)
    older.publish(b"1", 0, txn)
    produce(newer, topic, name)
    newer.publish(b"2", 0)
    assert visible(newer, topic, 1) == [b"2"]
    end = older.end(txn, commit=True)
    assert end.error == INVALID
    assert "fenced by a newer session of transactional id" in end.message
    for added in (older.add_partition(txn, topic), older.add_subscription(txn, topic, "s")):
        assert added.error == INVALID
        assert "fenced by a newer session" in added.message
    assert not older.end(txn, commit=False).HasField("error")  # the transaction was aborted
    assert_fenced(older.try_new_txn())


def test_a_commit_that_was_decided_holds_and_can_be_asked_for_again(
    connect: Connect, topic: str, name: str
) -> None:
    older, newer = connect(), connect()
    produce(older, topic, name)
    txn = older.new_txn()
    older.add_partition(txn, topic)
    older.publish(b"1", 0, txn)
    older.send_end(txn, commit=True)
    produce(newer, topic, name)
    assert visible(newer, topic, 1) == [b"1"]
    assert not older.end(txn, commit=True).HasField("error")


def test_a_reconnection_of_the_same_session_fences_no_session(
    connect: Connect, topic: str, name: str
) -> None:
    first, again = connect(), connect()
    told = produce(first, topic, name)
    first.create_producer(topic, 5)
    txn = first.new_txn()
    assert produce(again, topic, name, topic_epoch=told, epoch=1) == told
    first.close()
    assert produce(again, f"{topic}-other", name, 2) == told
    assert not again.end(txn, commit=True).HasField("error")


def test_two_producers_of_one_connection_are_one_session(raw: RawClient, topic: str) -> None:
    assert produce(raw, topic, topic[-9:]) == produce(raw, f"{topic}-other", topic[-9:], 2)


def test_a_named_session_may_have_several_connections(
    connect: Connect, topic: str, name: str
) -> None:
    one, other = connect(), connect()
    assert epoch(produce(one, topic, name, session="worker 1")) == 1
    assert epoch(produce(other, topic, name, session="worker 1")) == 1


def test_a_name_that_was_fenced_stays_fenced(connect: Connect, topic: str, name: str) -> None:
    produce(connect(), topic, name, session="worker 1")
    produce(connect(), topic, name, session="worker 2")
    assert_fenced(ask(connect(), topic, name, session="worker 1"))


def test_another_name_is_a_newer_session_on_the_same_connection_too(
    raw: RawClient, topic: str, name: str
) -> None:
    produce(raw, topic, name, session="worker 1")
    assert epoch(produce(raw, topic, name, 2, session="worker 2")) == 2
    assert raw.receive(_T.CLOSE_PRODUCER).producer_id == 1


def test_new_txn_may_name_the_session(connect: Connect, topic: str, name: str) -> None:
    older, newer = connect(), connect()
    answer = begin(older, name, "worker 1")
    txn = id_of(answer)
    assert answer.session_epoch == 1
    assert begin(older, name, "worker 1", 1).session_epoch == 1
    assert begin(newer, name, "worker 2").session_epoch == 2
    assert older.end(txn, commit=True).error == INVALID
    assert_fenced(begin(older, name, "worker 1"))
    assert_fenced(begin(connect(), name, "worker 1", 1))
    assert_fenced(begin(connect(), name, "", 1))


def test_a_transaction_belongs_to_the_session_that_publishes_in_it(
    connect: Connect, topic: str, name: str
) -> None:
    coordinator, older, newer = connect(), connect(), connect()
    txn = coordinator.new_txn()
    coordinator.add_partition(txn, topic)
    produce(older, topic, name)
    assert isinstance(older.publish(b"1", 0, txn), pb.CommandSendReceipt)
    produce(newer, topic, name)
    assert coordinator.end(txn, commit=True).error == INVALID


def test_a_producer_with_another_id_cannot_publish_in_it(
    connect: Connect, topic: str, name: str
) -> None:
    one, other = connect(), connect()
    produce(one, topic, name)
    produce(other, topic, f"{name} other")
    txn = one.new_txn()
    one.add_partition(txn, topic)
    refused = other.publish(b"1", 0, txn)
    assert "belongs to a session of transactional id" in refused.message


def test_a_connection_with_two_ids_begins_transactions_of_neither(
    connect: Connect, topic: str, name: str
) -> None:
    older, newer = connect(), connect()
    produce(older, topic, f"{name} a", 1)
    produce(older, topic, f"{name} b", 2)
    txn = older.new_txn()
    produce(newer, topic, f"{name} a")
    assert not older.end(txn, commit=True).HasField("error")


def test_a_transaction_that_begins_before_its_producer_is_granted_joins_with_a_message() -> None:
    """The record of the client's first session is still being written."""
    topic = "persistent://public/default/t"
    reached, may_write = threading.Event(), asyncio.Event()

    async def slow(broker: Broker) -> None:
        ids, begin = broker.coordinators.ids, broker.coordinators.ids.begin

        async def later(*asked: Any) -> Any:
            reached.set()
            await may_write.wait()
            return await begin(*asked)

        ids.begin = later  # type: ignore[method-assign]

    async def go_on(_: Broker) -> None:
        may_write.set()

    with (
        pybroker.testing.broker() as broker,
        RawClient(broker.service_url) as raw,
        RawClient(broker.service_url) as newer,
    ):
        broker.call(slow)
        metadata = [pb.KeyValue(key="txn.transactional.id", value="x")]
        body = pb.CommandProducer(topic=topic, producer_id=1, metadata=metadata)
        asking = raw.start_request(_T.PRODUCER, "producer", body)
        assert reached.wait(60)
        txn = raw.new_txn()
        raw.add_partition(txn, topic)
        broker.call(go_on)
        assert epoch(raw.answer_to(asking).topic_epoch) == 1
        assert isinstance(raw.publish(b"1", 0, txn), pb.CommandSendReceipt)
        produce(newer, topic, "x")
        assert raw.end(txn, commit=True).error == INVALID


def test_an_exclusive_producer_keeps_its_topic_epoch(
    connect: Connect, topic: str, name: str
) -> None:
    first, again = connect(), connect()
    exclusive = {"producer_access_mode": pb.Exclusive}
    told = produce(first, topic, name, **exclusive)
    assert told == 1 << 32
    first.close_producer()
    told = produce(again, topic, name, topic_epoch=told, epoch=1, **exclusive)
    assert told == 1 << 32 | 1


@pytest.mark.parametrize("wrong", ["", "x" * 257])
def test_an_id_has_1_to_256_characters(raw: RawClient, topic: str, wrong: str) -> None:
    assert "it must have 1 to 256 characters" in ask(raw, topic, wrong).message
    assert "it must have 1 to 256 characters" in begin(raw, wrong).message


def test_an_epoch_that_was_never_given_is_refused(raw: RawClient, topic: str, name: str) -> None:
    assert_fenced(ask(raw, topic, name, topic_epoch=2**63))
    assert_fenced(begin(raw, name, "", 2**64 - 1))


def test_an_unloaded_topic_fences_no_producer(
    wire_broker: RunningBroker, connect: Connect, topic: str, name: str
) -> None:
    raw = connect()
    told = produce(raw, topic, name)
    txn = raw.new_txn()
    raw.add_partition(txn, topic)
    raw.publish(b"1", 0, txn)
    wire_broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    raw.receive(_T.CLOSE_PRODUCER)
    assert produce(raw, topic, name, topic_epoch=told, epoch=1) == told
    raw.publish(b"2", 1, txn)
    assert not raw.end(txn, commit=True).HasField("error")
    assert visible(connect(), topic, 2) == [b"1", b"2"]


# -- with separate brokers


@pytest.fixture
def own() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(transaction_coordinators=2) as broker:
        yield broker


@pytest.mark.parametrize("kill", [True, False])
def test_a_restart_forgets_neither_epochs_nor_what_belongs_to_a_session(
    own: RunningBroker, kill: bool
) -> None:
    topic = "persistent://public/default/t"
    with RawClient(own.service_url) as older:
        told = produce(older, topic, "x", session="worker 1")
        txn = older.new_txn()
        older.add_partition(txn, topic)
        older.publish(b"1", 0, txn)
    own.kill_and_restart() if kill else own.restart()
    with RawClient(own.service_url) as again:  # the same session
        assert produce(again, topic, "x", topic_epoch=told) == told
        assert produce(again, f"{topic}2", "x", 2, session="worker 1") == told
    with RawClient(own.service_url) as newer, RawClient(own.service_url) as older:
        assert epoch(produce(newer, topic, "x")) == 2
        assert older.end(txn, commit=True).error == INVALID
        assert_fenced(ask(older, topic, "x", topic_epoch=told))
        newer.publish(b"2", 0)
        assert visible(newer, topic, 1) == [b"2"]
    own.kill_and_restart() if kill else own.restart()
    with RawClient(own.service_url) as older:
        assert_fenced(ask(older, topic, "x", topic_epoch=told))
        assert_fenced(ask(older, topic, "x", session="worker 1"))


def test_ids_of_a_principal_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    topic = "persistent://public/default/t"
    with (
        pybroker.testing.broker(max_transactional_ids_per_principal=2) as broker,
        RawClient(broker.service_url) as raw,
        RawClient(broker.service_url) as other,
    ):
        for number, name in enumerate("ab"):
            produce(raw, topic, name, number)
        for number in (3, 4, 5):
            assert "maxTransactionalIdsPerPrincipal" in ask(raw, topic, "c", number).message
        assert epoch(produce(other, topic, "a")) == 2
    told = [each for each in caplog.records if "maxTransactionalIdsPerPrincipal" in each.message]
    assert [each.levelname for each in told] == ["WARNING"]  # once, however often a client retries
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_an_id_that_was_refused_leaves_the_connection_s_session_as_it_was() -> None:
    topic = "persistent://public/default/t"
    with (
        pybroker.testing.broker(max_transactional_ids_per_principal=1) as broker,
        RawClient(broker.service_url) as raw,
        RawClient(broker.service_url) as newer,
    ):
        produce(raw, topic, "a")
        for number in range(2, 4):
            assert "maxTransactionalIdsPerPrincipal" in ask(raw, topic, "b", number).message
        txn = raw.new_txn()  # of the connection's only id
        assert epoch(produce(newer, topic, "a")) == 2
        assert raw.end(txn, commit=True).error == INVALID


def test_a_refusal_comes_behind_the_receipts_of_what_was_sent_before(
    connect: Connect, topic: str, name: str
) -> None:
    """Java's client would mistake an earlier refusal for the answer to another message."""
    raw, other = connect(), connect()
    produce(other, topic, f"{name}-other")
    produce(raw, topic, name)
    txn_id = id_of(begin(other, f"{name}-other"))
    with raw.in_one_piece():
        raw.start_publish(b"1", 0)
        raw.start_publish(b"2", 1, txn_id)
    answers = [raw.receive(_T.SEND_RECEIPT, _T.SEND_ERROR) for _ in range(2)]
    assert [answer.sequence_id for answer in answers] == [0, 1]
    assert answers[1].error == NotAllowed.code


def test_another_principal_s_id_is_another_one() -> None:
    settings = TOKEN_SETTINGS | {"super_user_roles": ("admin",)}
    with pybroker.testing.broker(**settings) as broker:

        def login(role: str) -> RawClient:
            data = token(role).encode()
            return RawClient(broker.service_url, auth_method_name="token", auth_data=data)

        topic = "persistent://public/default/t"
        with login("alice") as alice, login("bob") as bob, login("alice") as second:
            produce(alice, topic, "x")
            assert epoch(produce(bob, topic, "x")) == 1
            assert alice.kinds_before_pong() == []
            assert epoch(produce(second, topic, "x")) == 2
            assert alice.receive(_T.CLOSE_PRODUCER).producer_id == 1
            assert bob.kinds_before_pong() == []


def test_another_principal_s_transaction_is_not_taken_into_a_session() -> None:
    settings = TOKEN_SETTINGS | {"super_user_roles": ("admin",)}
    with pybroker.testing.broker(**settings) as broker:

        def login(role: str) -> RawClient:
            data = token(role).encode()
            return RawClient(broker.service_url, auth_method_name="token", auth_data=data)

        topic = "persistent://public/default/t"
        with login("alice") as alice, login("bob") as bob, login("bob") as second:
            txn_id = alice.new_txn()
            produce(bob, topic, "x")
            assert bob.publish(b"1", 0, txn_id).error == AuthorizationError.code
            produce(second, topic, "x")  # this aborts the open transactions of earlier sessions
            assert not alice.end(txn_id, commit=True).HasField("error")
