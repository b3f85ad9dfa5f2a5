"""The official Java client with a transactional id, on several brokers: `txn.session` names it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

sys.path.append(str(Path(__file__).parents[1] / "compat"))

from official_java import NOTHING_S, OfficialClient, java_gateway

pytestmark = [pytest.mark.java]

TOPICS = [f"persistent://public/default/java-fenced-{number}" for number in range(6)]


@pytest.fixture
def clients(two_brokers: str) -> Iterator[list[OfficialClient]]:
    with java_gateway() as gateway:
        made = [OfficialClient(gateway, two_brokers) for _ in range(2)]
        yield made
        for client in made:
            client.shutdown()


def producers(client: OfficialClient, session: str) -> list[Any]:
    properties = {"txn.transactional.id": "java", "txn.session": session}
    return [client.producer(topic, properties=properties, enableBatching=False) for topic in TOPICS]


def test_a_newer_client_fences_the_older_one_on_all_brokers(
    clients: list[OfficialClient],
) -> None:
    older, newer = clients
    with pytest.raises(Py4JJavaError, match=r"set the property txn\.session"):
        older.producer(TOPICS[0], properties={"txn.transactional.id": "java"})
    reader = newer.consumer(TOPICS, "reader")
    zombies = producers(older, "process 1")
    committed = older.transaction()
    for zombie in zombies:
        zombie.newMessage(committed).value(b"older").send()
    committed.commit().get()
    assert newer.take(reader, len(TOPICS)) == [b"older"] * len(TOPICS)
    open_ones = [older.transaction() for _ in range(4)]
    for txn in open_ones:
        for zombie in zombies:
            zombie.newMessage(txn).value(b"zombie").send()
    fresh = producers(newer, "process 2")
    for txn in open_ones:
        with pytest.raises(Py4JJavaError, match="fenced by a newer session"):
            txn.commit().get()
    for zombie in zombies:
        with pytest.raises(Py4JJavaError, match=r"Fenced|AlreadyClosed"):
            zombie.send(b"zombie")
    with pytest.raises(Py4JJavaError, match="newer session"):
        producers(older, "process 1")
    txn = newer.transaction()
    for producer in fresh:
        producer.newMessage(txn).value(b"newer").send()
    txn.commit().get()
    assert newer.take(reader, len(TOPICS)) == [b"newer"] * len(TOPICS)
    assert newer.receive(reader, NOTHING_S) is None
