"""Common steps of the behaviour tests: consume, check for silence, administer."""

from typing import Any

import pytest

from pybroker.base.names import TopicName
from pybroker.client import Client, Consumer, ConsumerType, InitialPosition, Timeout

# Facts about messages that open transactions hold back, or show to read_uncommitted readers. In
# commit order there are none; its own facts are in test_txn_shown_by_commits.py.
IN_LOG_ORDER = pytest.mark.parametrize(
    "transaction_buffer", ["logOrder"], indirect=True, scope="session"
)

# Subscriptions with one active consumer.
SINGLE = pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])

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


def receive(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(timeout_millis=SOON_MS) for _ in range(count)]


def publish(client: Client, topic: str, count: int, **options: Any) -> None:
    producer = client.create_producer(topic, **options)
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


def acknowledge_up_to(consumer: Any, message: Any, transactions: Client | None) -> None:
    """In a transaction of `transactions`, if given."""
    if transactions is None:
        consumer.acknowledge_cumulative(message)
    else:
        with transactions.new_transaction() as txn:
            consumer.acknowledge_cumulative(message, txn=txn)


def publish_batch(client: Client, topic: str, count: int) -> None:
    """Publishes one entry of `count` messages."""
    options = {"batching_max_messages": count, "batching_max_publish_delay_ms": 60_000}
    publish(client, topic, count, batching_enabled=True, **options)


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
