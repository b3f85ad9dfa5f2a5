"""A newer client of a transactional id fences the older one, whatever that one was doing."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scenario import assert_nothing_more, drain, subscribe

import pybroker.testing
from pybroker.client import (
    Client,
    InvalidTxnStatus,
    NotAllowed,
    ProducerAccessMode,
    ProducerFenced,
    PulsarException,
    TransactionAborted,
    aio,
)
from pybroker.client.errors import InvalidConfiguration
from pybroker.server.connections import on_connect

Clients = Callable[[], Client]


@pytest.fixture
def clients(shared_broker: Any, topic: str) -> Iterator[Clients]:
    """Makes clients that share the test's transactional id."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(shared_broker.service_url, transactional_id=topic))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_what_the_older_one_had_open_is_aborted(
    clients: Clients, client: Client, topic: str
) -> None:
    consumer, older = subscribe(client, topic), clients()
    producer = older.create_producer(topic)
    txn = older.new_transaction()
    producer.send(b"zombie", txn=txn)
    clients().create_producer(topic).send(b"newer")
    with pytest.raises(InvalidTxnStatus, match="fenced by a newer session"):
        txn.commit()
    assert drain(consumer, 1) == [b"newer"]
    assert_nothing_more(consumer)


def test_the_older_one_sends_nothing_any_more(clients: Clients, client: Client, topic: str) -> None:
    older = clients()
    producer, elsewhere = older.create_producer(topic), older.create_producer(f"{topic}-other")
    consumer = subscribe(client, [topic, f"{topic}-other"])
    producer.send(b"older")
    clients().new_transaction()
    for each in (producer, elsewhere):
        with pytest.raises(ProducerFenced, match="newer session of transactional id"):
            each.send(b"zombie")
    with pytest.raises(ProducerFenced):
        older.new_transaction()
    with pytest.raises(ProducerFenced):
        older.create_producer(topic)
    assert drain(consumer, 1) == [b"older"]
    assert_nothing_more(consumer)


def test_a_transaction_fails_where_a_newer_client_comes_between_its_messages(
    clients: Clients, topic: str
) -> None:
    older = clients()
    producer = older.create_producer(topic)
    txn = older.new_transaction()
    producer.send(b"1", txn=txn)
    clients().create_producer(topic)
    with pytest.raises(PulsarException):
        producer.send(b"2", txn=txn)
    with pytest.raises(TransactionAborted):
        txn.commit()


def test_acknowledgements_of_a_fenced_transaction_are_given_back(
    clients: Clients, client: Client, topic: str
) -> None:
    client.create_producer(topic).send(b"order")
    older = clients()
    txn = older.new_transaction()
    consumer = subscribe(older, topic)
    consumer.acknowledge(consumer.receive(timeout_millis=30_000), txn=txn)
    newer = clients()
    newer.new_transaction()
    with pytest.raises(InvalidTxnStatus, match="fenced"):
        txn.commit()
    consumer.close()
    assert drain(subscribe(newer, topic), 1) == [b"order"]


def test_a_client_fences_neither_itself_nor_clients_without_an_id(
    clients: Clients, client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    plain, own = client.create_producer(topic), clients()
    one = own.create_producer(topic)
    with own.new_transaction() as txn, own.new_transaction() as other:
        one.send(b"1", txn=txn)
        own.create_producer(topic).send(b"2", txn=other)
    plain.send(b"3")
    assert sorted(drain(consumer, 3)) == [b"1", b"2", b"3"]


def test_an_exclusive_producer_of_a_fenced_client_leaves_the_topic_to_the_newer_one(
    clients: Clients, topic: str
) -> None:
    exclusive = {"access_mode": ProducerAccessMode.Exclusive}
    older = clients().create_producer(topic, **exclusive)
    newer = clients()
    newer.new_transaction()
    with pytest.raises(ProducerFenced):
        older.send(b"zombie")
    newer.create_producer(topic, **exclusive).send(b"newer")


def test_a_lost_connection_and_a_restart_fence_no_session() -> None:
    topic = "persistent://public/default/t"
    with (
        pybroker.testing.broker() as broker,
        Client(broker.service_url, transactional_id="x") as own,
        Client(broker.service_url, transactional_id="x") as newer,
    ):
        producers = [own.create_producer(f"{topic}{number}") for number in range(2)]
        for round_ in range(2):
            txn = own.new_transaction()
            for producer in producers:
                producer.send(b"%d" % round_, txn=txn)
            broker.kill_and_restart() if round_ else broker.call(cut_all)
            txn.commit()
        newer.new_transaction()
        broker.kill_and_restart()
        with pytest.raises(ProducerFenced):
            producers[0].send(b"zombie")
        assert drain(subscribe(newer, f"{topic}0"), 2) == [b"0", b"1"]


async def cut_all(broker: Any) -> None:
    for session in list(broker.server.sessions):
        session._transport.abort()


def test_the_asyncio_client_has_it_too(shared_broker: Any, topic: str) -> None:
    async def scenario() -> None:
        async with (
            aio.Client(shared_broker.service_url, transactional_id=topic) as older,
            aio.Client(shared_broker.service_url, transactional_id=topic) as newer,
        ):
            producer = await older.create_producer(topic)
            await newer.new_transaction()
            with pytest.raises(ProducerFenced):
                await producer.send(b"zombie")

    asyncio.run(scenario())


def test_a_broker_that_fences_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = on_connect.pb.FeatureFlags

    def without(**flags: Any) -> Any:
        return plain(**flags | {"supports_transactional_ids": False})

    with pybroker.testing.broker() as broker:
        monkeypatch.setattr(on_connect.pb, "FeatureFlags", without)
        with Client(broker.service_url, transactional_id="x") as own:
            with pytest.raises(NotAllowed, match="does not fence sessions"):
                own.create_producer("t")
            with pytest.raises(NotAllowed, match="does not fence sessions"):
                own.new_transaction()


def test_an_empty_id_is_refused(shared_broker: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="The transactional id is empty"):
        Client(shared_broker.service_url, transactional_id="")
