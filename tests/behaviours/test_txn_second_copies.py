"""What this project's client knows when it acknowledges cumulatively in a transaction: which
deliveries of its messages the application means.
"""

from collections.abc import Callable
from typing import Any

import pytest
from scenario import (
    SINGLE,
    acknowledge_up_to,
    assert_nothing_more,
    create_partitioned_topic,
    publish,
    publish_batch,
    receive,
    subscribe,
)

from pybroker.client import (
    Client,
    ConsumerType,
    TransactionConflict,
)

# Entries of one message, or all in one batch.
PUBLISHED = pytest.mark.parametrize("publish", [publish, publish_batch])
Publish = Callable[..., None]


def data(messages: list[Any]) -> list[int]:
    return [int(message.data()) for message in messages]


def refuses(consumer: Any, message: Any, client: Client) -> None:
    """A cumulative acknowledgement in a transaction."""
    refused = client.new_transaction()
    with pytest.raises(TransactionConflict, match="redelivery"):
        consumer.acknowledge_cumulative(message, txn=refused)
    refused.abort()


def disconnect_all(broker: Any, topic: str) -> None:
    """The consumers, which subscribe again."""

    async def disconnect(running: Any) -> None:
        found = await running.topics.get(topic)
        found.subscriptions["sub"].dispatch.disconnect_consumers("test")

    broker.call(disconnect)


@SINGLE
@PUBLISHED
def test_what_was_received_twice_is_consumed_once(
    client: Client, topic: str, kind: ConsumerType, publish: Publish
) -> None:
    """A program holds messages when it, or its client's timer, asks for redelivery; it acknowledges
    them in one transaction, and their second copies in another.
    """
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 5)
    held = receive(consumer, 5)
    consumer.redeliver_unacknowledged_messages()
    again = receive(consumer, 5)
    acknowledge_up_to(consumer, held[2], client)
    refuses(consumer, again[4], client)
    consumer.redeliver_unacknowledged_messages()
    left = receive(consumer, 2)
    assert data(left) == [3, 4]
    acknowledge_up_to(consumer, left[-1], client)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
@PUBLISHED
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("breaks", [True, False])
def test_copies_of_what_is_consumed_are_not_received(
    client: Client,
    topic: str,
    kind: ConsumerType,
    publish: Publish,
    shared_broker: Any,
    by_id: bool,
    breaks: bool,
) -> None:
    """After a broken connection, or a request for redelivery, the messages that the application
    holds wait in the queue again. It acknowledges those it holds, and goes on without a refusal.
    """
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 5)
    held = receive(consumer, 5)
    if breaks:
        disconnect_all(shared_broker, topic)
    else:
        consumer.redeliver_unacknowledged_messages()
    (first,) = receive(consumer, 1)  # the copies have come
    assert data([first]) == [0]
    txn = client.new_transaction()
    last = held[2].message_id() if by_id else held[2]
    consumer.acknowledge_cumulative(last, txn=txn)
    txn.commit()
    more = receive(consumer, 2)
    assert data(more) == [3, 4]
    refuses(consumer, more[-1], client)  # 0 was received twice
    consumer.redeliver_unacknowledged_messages()
    more = receive(consumer, 2)
    assert data(more) == [3, 4]
    acknowledge_up_to(consumer, more[-1], client)
    assert_nothing_more(consumer)


@SINGLE
@PUBLISHED
def test_after_an_abort_the_application_acknowledges_again_or_asks(
    client: Client, topic: str, kind: ConsumerType, publish: Publish
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 5)
    messages = receive(consumer, 4)
    for _ in range(3):
        attempt = client.new_transaction()
        consumer.acknowledge_cumulative(messages[3], txn=attempt)
        attempt.abort()
        last = receive(consumer, 1) if len(messages) == 4 else []
        messages += last
    assert_nothing_more(consumer)  # nothing comes again by itself
    acknowledge_up_to(consumer, messages[1], client)
    attempt = client.new_transaction()
    consumer.acknowledge_cumulative(messages[3], txn=attempt)
    attempt.abort()
    consumer.redeliver_unacknowledged_messages()
    again = receive(consumer, 3)
    assert data(again) == [2, 3, 4]
    acknowledge_up_to(consumer, again[-1], client)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


def test_a_failover_consumer_that_becomes_active_again_does_not_receive_twice(
    client: Client, topic: str
) -> None:
    first = subscribe(client, topic, consumer_type=ConsumerType.Failover, consumer_name="b")
    publish(client, topic, 6)
    messages = receive(first, 4)
    second = subscribe(client, topic, consumer_type=ConsumerType.Failover, consumer_name="a")
    given = receive(second, 2)
    second.close()
    messages += receive(first, 2)
    assert data(messages) == [0, 1, 2, 3, 4, 5]
    assert data(given) == [0, 1]
    acknowledge_up_to(first, messages[-1], client)
    assert_nothing_more(first)


def test_each_partition_is_acknowledged_on_its_own(
    client: Client, topic: str, shared_broker: Any
) -> None:
    create_partitioned_topic(shared_broker, topic, 3)
    producer = client.create_producer(topic)
    for number in range(12):
        producer.send(b"%d" % number)
    consumer = subscribe(client, topic)
    messages = receive(consumer, 12)
    lasts = {message.topic_name(): message for message in messages}
    attempt = client.new_transaction()
    for last in lasts.values():
        consumer.acknowledge_cumulative(last, txn=attempt)
    attempt.abort()
    one, *_ = lasts.values()
    acknowledge_up_to(consumer, one, client)
    consumer.redeliver_unacknowledged_messages()
    again = receive(consumer, 8)
    expected = [message for message in messages if message.topic_name() != one.topic_name()]
    assert sorted(data(again)) == sorted(data(expected))
    assert_nothing_more(consumer)


def test_very_many_are_acknowledged_at_once(client: Client, topic: str) -> None:
    count = 20_001
    consumer = subscribe(client, topic)
    publish(client, topic, count, max_pending_messages=count)
    messages = receive(consumer, count)
    attempt = client.new_transaction()
    consumer.acknowledge_cumulative(messages[-1], txn=attempt)
    attempt.abort()
    acknowledge_up_to(consumer, messages[-2], client)
    consumer.redeliver_unacknowledged_messages()
    assert data(receive(consumer, 1)) == [count - 1]
    assert_nothing_more(consumer)


@SINGLE
@PUBLISHED
@pytest.mark.parametrize("last", [0, 2, 4])
def test_a_transaction_does_not_consume_both_deliveries_of_a_message(
    client: Client,
    topic: str,
    kind: ConsumerType,
    publish: Publish,
    shared_broker: Any,
    last: int,
) -> None:
    """A program does not notice that its connection broke. As with individual acknowledgements, it
    cannot consume in one transaction what it received before and after.
    """
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 5)
    held = receive(consumer, 5)
    disconnect_all(shared_broker, topic)
    again = receive(consumer, 5)
    assert data(again) == data(held) == [0, 1, 2, 3, 4]
    refuses(consumer, again[last], client)
    refused = client.new_transaction()
    with pytest.raises(TransactionConflict):
        consumer.acknowledge([held[1], again[1]], txn=refused)
    refused.abort()
    consumer.redeliver_unacknowledged_messages()
    for message in receive(consumer, 5):
        acknowledge_up_to(consumer, message, client)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
@PUBLISHED
@pytest.mark.parametrize("singly", [True, False])
@pytest.mark.parametrize("breaks_first", [True, False])
def test_nor_one_after_the_other(
    client: Client,
    topic: str,
    kind: ConsumerType,
    publish: Publish,
    shared_broker: Any,
    singly: bool,
    breaks_first: bool,
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 2)
    held = receive(consumer, 2)
    txn = client.new_transaction()
    again = []
    if breaks_first:
        disconnect_all(shared_broker, topic)
        again = receive(consumer, 2)
    if singly:
        consumer.acknowledge(held, txn=txn)
    else:
        consumer.acknowledge_cumulative(held[1], txn=txn)
    if not breaks_first:
        disconnect_all(shared_broker, topic)
        again = receive(consumer, 0 if singly else 2)
    publish(client, topic, 1)
    (last,) = receive(consumer, 1)
    if again:
        with pytest.raises(TransactionConflict, match="received twice"):
            consumer.acknowledge_cumulative(last, txn=txn)
    else:  # what a transaction holds singly does not come again
        consumer.acknowledge_cumulative(last, txn=txn)
    txn.abort()
    consumer.redeliver_unacknowledged_messages()
    messages = receive(consumer, 3)
    with client.new_transaction() as txn:
        consumer.acknowledge_cumulative(messages[1], txn=txn)
        consumer.acknowledge_cumulative(messages[2], txn=txn)
    assert_nothing_more(consumer)
