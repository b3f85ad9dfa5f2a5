"""The official Python client with a transactional id, which is a property of its producers."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pulsar
import pytest
from test_official_python_protocol import client_of, earliest, unload

import pybroker.testing
from pybroker.testing import RunningBroker

SOON_MS = 30_000


def close(client: pulsar.Client) -> None:
    """A fenced producer is closed already, and the official client may raise because of it."""
    with suppress(pulsar.AlreadyClosed):
        client.close()


def producer_of(client: pulsar.Client, topic: str, name: str, **options: Any) -> Any:
    return client.create_producer(topic, properties={"txn.transactional.id": name}, **options)


@pytest.fixture
def clients(wire_broker: Any) -> Iterator[list[pulsar.Client]]:
    made = [client_of(wire_broker.service_url) for _ in range(2)]
    yield made
    for client in made:
        close(client)


def test_a_newer_client_fences_the_older_one(clients: list[pulsar.Client], topic: str) -> None:
    older, newer = clients
    reader = earliest(newer, topic)
    zombie = producer_of(older, topic, topic)
    zombie.send(b"older")
    producer_of(newer, topic, topic).send(b"newer")
    with pytest.raises(pulsar.PulsarException):
        zombie.send(b"zombie")
    received = [reader.receive(SOON_MS).data() for _ in range(2)]
    assert received == [b"older", b"newer"]
    with pytest.raises(pulsar.Timeout):
        reader.receive(200)


@pytest.mark.parametrize("options", [{}, {"producer_name": "p"}])
def test_a_client_that_reconnects_is_the_same_session(
    wire_broker: RunningBroker, clients: list[pulsar.Client], topic: str, options: Any
) -> None:
    client, newer = clients
    producers = [producer_of(client, f"{topic}-{n}", topic, **options) for n in range(2)]

    async def cut(running: Any) -> None:
        for session in list(running.server.sessions):
            if session.producers:
                session._transport.abort()

    for round_ in range(3):
        for producer in producers:
            producer.send(b"%d" % round_)
        if round_ == 0:
            wire_broker.call(cut)
        else:
            unload(wire_broker, f"{topic}-0")
    reader = earliest(newer, [f"{topic}-{n}" for n in range(2)])
    received = sorted(reader.receive(SOON_MS).data() for _ in range(6))
    assert received == [b"0", b"0", b"1", b"1", b"2", b"2"]
    producer_of(newer, topic, topic)  # and another one may fence it
    with pytest.raises(pulsar.PulsarException):
        producers[1].send(b"zombie")


def test_a_client_that_outlives_its_broker_is_the_same_session(topic: str) -> None:
    with pybroker.testing.broker() as broker:
        client, newer = client_of(broker.service_url), client_of(broker.service_url)
        producers = [producer_of(client, f"{topic}-{n}", "x") for n in range(2)]
        broker.kill_and_restart()
        for producer in producers:
            producer.send(b"after")
        producer_of(newer, topic, "x").send(b"newer")
        broker.kill_and_restart()
        for producer in producers:
            with pytest.raises(pulsar.PulsarException):
                producer.send(b"zombie")
        close(client)
        close(newer)
