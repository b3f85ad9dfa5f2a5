"""The official Java client with a transactional id, which is a property of its producers."""

from collections.abc import Iterator
from typing import Any

import pytest
from official_java import NOTHING_S, OfficialClient, java_gateway
from py4j.protocol import Py4JJavaError

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.java]

TOPICS = [f"java-fenced-{number}" for number in range(3)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    with java_gateway() as gateway:
        yield gateway


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker() as broker:
        yield broker


@pytest.fixture
def clients(gateway: Any, broker: RunningBroker) -> Iterator[list[OfficialClient]]:
    made = [OfficialClient(gateway, broker.service_url) for _ in range(2)]
    yield made
    for client in made:
        client.shutdown()


def producers(client: OfficialClient, session: str = "", topics: int = 3) -> list[Any]:
    properties = {"txn.transactional.id": "java"}
    if session:
        properties["txn.session"] = session
    return [
        client.producer(topic, properties=properties, enableBatching=False)
        for topic in TOPICS[:topics]
    ]


def test_a_newer_client_aborts_what_the_older_one_had_open_and_keeps_it_out(
    clients: list[OfficialClient],
) -> None:
    older, newer = clients
    reader = newer.consumer(TOPICS, "reader")
    zombies = producers(older)
    txn = older.transaction()
    zombies[0].newMessage(txn).value(b"zombie").send()
    fresh = producers(newer)
    with pytest.raises(Py4JJavaError, match="fenced by a newer session"):
        txn.commit().get()
    for zombie in zombies:
        with pytest.raises(Py4JJavaError, match=r"Fenced|AlreadyClosed"):
            zombie.send(b"zombie")
    with pytest.raises(Py4JJavaError, match="newer session"):
        older.transaction()
    txn = newer.transaction()
    for producer in fresh:
        producer.newMessage(txn).value(b"newer").send()
    txn.commit().get()
    assert newer.take(reader, 3) == [b"newer"] * 3
    assert newer.receive(reader, NOTHING_S) is None


def test_a_client_that_reconnects_fences_neither_itself_nor_its_transactions(
    broker: RunningBroker, clients: list[OfficialClient]
) -> None:
    own, other = clients
    reader, its = other.consumer(TOPICS, "reader"), producers(own)

    async def cut(running: Any) -> None:
        for session in list(running.server.sessions):
            if session.producers:
                session._transport.abort()

    for disturb in (lambda: broker.call(cut), broker.kill_and_restart):
        txn = own.transaction()
        for producer in its:
            producer.newMessage(txn).value(b"a").send()
        disturb()
        for producer in its:
            producer.send(b"b")
        txn.commit().get()
    # Messages in the reader's queue when the broker was killed are received again.
    received: dict[str, bytes] = {}
    while len(received) < 12:
        message = other.receive(reader)
        assert message is not None, received
        received[str(message.getMessageId())] = bytes(message.getData())
    assert sorted(received.values()) == [b"a"] * 6 + [b"b"] * 6
    while (message := other.receive(reader, NOTHING_S)) is not None:
        assert str(message.getMessageId()) in received


def test_a_client_with_several_connections_names_its_session(
    gateway: Any, broker: RunningBroker
) -> None:
    own = OfficialClient(gateway, broker.service_url, connectionsPerBroker=3)
    reader, its = own.consumer(TOPICS, "reader"), producers(own, session="process 1")
    for producer in its:
        producer.send(b"x")
    assert own.take(reader, 3) == [b"x"] * 3
    own.shutdown()
