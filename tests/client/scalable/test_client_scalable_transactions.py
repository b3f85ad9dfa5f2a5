"""Transactions over scalable topics, and all of it with asyncio."""

import asyncio
from typing import Any

import pytest
from scalable_orders import Orders, by_key, contents, queue, receive, stream

from pybroker.client import Client, InitialPosition, Message, Timeout, TransactionConflict, aio
from pybroker.client.blocking.scalable import StreamConsumer
from pybroker.client.scalable import Checkpoint


@pytest.mark.parametrize("open_input", [queue, stream])
def test_a_transaction_moves_messages_across_splits_of_both_topics(
    broker: Any, client: Client, orders: Orders, open_input: Any
):
    """Exactly once: input and output are split while it is open."""
    paid = Orders(broker, client)
    consumer, observer = open_input(client, orders), queue(client, paid)
    published = orders.publish()
    received = receive(consumer, len(published))
    with client.new_transaction() as txn:
        for number, message in enumerate(received):
            if number == len(received) // 2:
                orders.split(0)
                paid.split(0)
            key = message.partition_key()
            paid.producer.send(message.data(), partition_key=key, txn=txn)
        acknowledge_all(consumer, received, txn)
        with pytest.raises(Timeout):
            observer.receive(timeout_millis=50)
    moved = receive(observer, len(published))
    assert sorted(contents(moved)) == published
    assert all(values == sorted(values) for values in by_key(moved).values())
    consumer.close()
    with pytest.raises(Timeout):
        open_input(client, orders).receive(timeout_millis=100)


@pytest.mark.parametrize("open_input", [queue, stream])
def test_an_aborted_transaction_gives_its_messages_back_after_a_split(
    client: Client, orders: Orders, open_input: Any
):
    consumer = open_input(client, orders)
    published = orders.publish()
    received = receive(consumer, len(published))
    txn = client.new_transaction()
    acknowledge_all(consumer, received, txn)
    orders.split(0)
    published += orders.publish(txn=txn)
    txn.abort()
    if open_input is stream:
        with client.new_transaction() as again:  # they do not come again by themselves
            acknowledge_all(consumer, received, again)
    else:
        received = receive(consumer, len(received))
        acknowledge_all(consumer, received, None)
    later = orders.publish()
    assert sorted(contents(receive(consumer, len(later)))) == later


def acknowledge_all(consumer: Any, messages: list[Message], txn: Any) -> None:
    if isinstance(consumer, StreamConsumer):
        consumer.acknowledge_cumulative(messages[-1], txn=txn)
    else:
        consumer.acknowledge(messages, txn=txn)


def test_two_transactions_that_acknowledge_the_same_are_in_conflict(client: Client, orders: Orders):
    consumer = queue(client, orders)
    orders.publish(1)
    received = receive(consumer, 1)
    first, second = client.new_transaction(), client.new_transaction()
    consumer.acknowledge(received, txn=first)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(received, txn=second)
    first.commit()
    second.abort()


# -- the client


def test_asyncio_has_the_same(broker: Any, orders: Orders):
    async def work() -> tuple[list[bytes], ...]:
        async with aio.Client(broker.service_url) as client:
            ways = (
                await client.create_queue_consumer(
                    orders.name, "q", initial_position=InitialPosition.Earliest
                ),
                await client.create_stream_consumer(
                    orders.name, "s", initial_position=InitialPosition.Earliest
                ),
                await client.create_checkpoint_consumer(orders.name, Checkpoint.earliest),
            )
            found = []
            for consumer in ways:
                found.append([(await consumer.receive(30_000)).data() for _ in published])
            return tuple(found)

    published = orders.publish()
    assert asyncio.run(work()) == (published, published, published)
