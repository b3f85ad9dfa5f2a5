"""Common steps of the behaviour tests: consume, check for silence, administer."""

from typing import Any

import pytest

from pybroker.base.names import TopicName
from pybroker.client import Client, Consumer, InitialPosition, Timeout

# Facts about messages that open transactions hold back, or show to read_uncommitted readers. In
# commit order there are none; its own facts are in test_txn_shown_by_commits.py.
IN_LOG_ORDER = pytest.mark.parametrize(
    "transaction_buffer", ["logOrder"], indirect=True, scope="session"
)

# SOON_MS is long enough for messages that must come; NOTHING_MS is short. A receive that must
# return nothing comes only after a later message was received, or after the end of a transaction.
SOON_MS = 30_000
NOTHING_MS = 150


def subscribe(client: Client, topic: str, name: str = "sub", **options: Any) -> Consumer:
    """Subscribes from the beginning of the topic."""
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


# -- administration, and the broker's inner state


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
