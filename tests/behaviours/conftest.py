"""Fixtures of the transactions' behaviours: each test is a fact, seen through a client."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.client import Client, Consumer, InitialPosition, Timeout
from pybroker.names import TopicName

_numbers = itertools.count(1)
# Long enough for what must come, short for what must not: a receive that returns nothing is only
# ever checked behind something that was received later, or after the end of a transaction.
SOON_MS = 5_000
NOTHING_MS = 150


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[Any]:
    """One broker for every test that neither restarts nor configures it."""
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture
def client(shared_broker: Any) -> Iterator[Client]:
    client = Client(shared_broker.service_url, enable_transaction=True)
    yield client
    client.close()


@pytest.fixture
def raw(shared_broker: Any) -> Iterator[RawClient]:
    with RawClient(shared_broker.service_url) as raw:
        yield raw


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/topic-{next(_numbers)}"


@pytest.fixture
def topics() -> Callable[[int], list[str]]:
    def make(count: int) -> list[str]:
        return [f"persistent://public/default/topic-{next(_numbers)}" for _ in range(count)]

    return make


def subscribe(client: Client, topic: str, name: str = "sub", **options: Any) -> Consumer:
    """From the beginning of the topic."""
    return client.subscribe(topic, name, initial_position=InitialPosition.Earliest, **options)


def drain(consumer: Consumer, count: int, acknowledge: bool = True) -> list[bytes]:
    """The next `count` payloads, acknowledged."""
    payloads = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=SOON_MS)
        payloads.append(message.data())
        if acknowledge:
            consumer.acknowledge(message)
    return payloads


def assert_nothing_more(consumer: Consumer) -> None:
    with pytest.raises(Timeout):
        message = consumer.receive(timeout_millis=NOTHING_MS)
        pytest.fail(f"received {message.data()!r}")


# -- what an administrator does, and what only the broker knows


def create_partitioned_topic(broker: Any, topic: str, partitions: int) -> None:
    name = TopicName.parse(topic)
    broker.call(lambda running: running.topics.create_partitioned(name, partitions))


def delete_topic(broker: Any, topic: str) -> None:
    broker.call(lambda running: running.topics.delete(TopicName.parse(topic), force=True))


def is_consumed_to_the_end(broker: Any, topic: str, subscription: str) -> bool:
    """Whether the mark-delete position stands on the topic's very last entry."""

    async def look(running: Any) -> bool:
        found = await running.topics.get(topic)
        cursor = found.subscriptions[subscription].cursor
        return bool(cursor.mark_delete_position == found.ledger.last_confirmed)

    return bool(broker.call(look))
