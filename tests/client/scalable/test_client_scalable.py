"""Queue and stream consumers on scalable topics of a broker in this process."""

from typing import Any

import pytest
from scalable_orders import Orders, by_key, contents, queue, receive, stream

from pybroker.client import (
    Client,
    InitialPosition,
    InvalidConfiguration,
    NotAllowed,
    Timeout,
    TransactionConflict,
)
from pybroker.client.scalable import received_order

# -- queue consumers


def test_a_queue_consumer_gets_everything_while_segments_change(client: Client, orders: Orders):
    consumer = queue(client, orders)
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    orders.merge(1, 2)
    published += orders.publish()
    received = receive(consumer, len(published))
    assert sorted(contents(received)) == published
    for message in received:
        consumer.acknowledge(message)
    orders.wait_until_pruned(0, 1, 2)  # the consumer has left what it has drained
    consumer.close()
    with pytest.raises(Timeout):
        queue(client, orders).receive(timeout_millis=1)


def test_a_queue_consumer_that_was_away_gets_what_came_to_the_children(
    client: Client, orders: Orders
):
    queue(client, orders, initial_position=InitialPosition.Latest).close()
    orders.split(0)
    published = orders.publish()
    assert sorted(contents(receive(queue(client, orders), len(published)))) == published


def test_queue_consumers_share_the_messages(client: Client, orders: Orders):
    one, other = queue(client, orders), queue(client, orders)
    orders.split(0)
    published = orders.publish(100)
    received = contents(receive(one, 1) + receive(other, 1))
    for consumer in (one, other):
        while len(received) < len(published):
            try:
                received.append(consumer.receive(timeout_millis=500).data())
            except Timeout:
                break
    assert sorted(received) == published


def test_acknowledging_again_what_was_drained_is_harmless(client: Client, orders: Orders):
    consumer = queue(client, orders)
    orders.publish(1)
    (message,) = receive(consumer, 1)
    consumer.acknowledge(message)
    orders.split(0)
    orders.wait_until_pruned(0)
    consumer.acknowledge(message)
    consumer.negative_acknowledge(message)
    with client.new_transaction() as txn, pytest.raises(TransactionConflict):
        consumer.acknowledge(message, txn=txn)


def test_a_message_that_was_not_acknowledged_keeps_its_segment(client: Client, orders: Orders):
    consumer = queue(client, orders, negative_ack_redelivery_delay_ms=1)
    published = orders.publish(2)
    first, second = receive(consumer, 2)
    orders.split(0)
    consumer.acknowledge(first)
    consumer.negative_acknowledge(second)
    assert orders.prune() == []
    assert contents(receive(consumer, 1)) == published[1:]


def test_a_seek_to_a_time_reads_drained_segments_again(client: Client, orders: Orders):
    consumer = queue(client, orders)
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    for message in receive(consumer, len(published)):
        consumer.acknowledge(message)
    consumer.seek(0)
    again = receive(consumer, len(published))
    assert sorted(contents(again)) == published
    for message in again:
        consumer.acknowledge(message)
    orders.wait_until_pruned(0)


def test_a_queue_consumer_reads_again_what_an_administrator_moved_it_to(
    broker: Any, client: Client, orders: Orders
):
    """Also drained segments, which it had left."""
    consumer = queue(client, orders)
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    for message in receive(consumer, len(published)):
        consumer.acknowledge(message)
    names = [f"{orders.segments}/{name}" for name in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2")]
    broker.wait_until(lambda: not any(broker.backlog(each, "workers") for each in names))
    orders.rewind("workers")
    assert sorted(contents(receive(consumer, len(published)))) == published


def test_a_deleted_topic_ends_its_queue_consumer(client: Client, orders: Orders):
    consumer = queue(client, orders)
    orders.delete()
    with pytest.raises(Exception, match=r"does not exist|is no segment|deleted"):
        consumer.receive(timeout_millis=30_000)


def test_an_ordinary_topic_can_be_consumed_like_a_queue(client: Client):
    consumer = client.create_queue_consumer("plain", "workers")
    client.create_producer("plain").send(b"x")
    (message,) = receive(consumer, 1)
    assert message.data() == b"x"
    consumer.acknowledge(message)


def test_subscribing_as_to_an_ordinary_topic_is_refused_with_advice(client: Client, orders: Orders):
    with pytest.raises(InvalidConfiguration, match="create_queue_consumer"):
        client.subscribe(orders.name, "s")


# -- stream consumers


def test_a_stream_consumer_gets_each_keys_messages_in_order(client: Client, orders: Orders):
    consumer = stream(client, orders)
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    orders.split(1)
    orders.merge(4, 2)
    published += orders.publish()
    received = []
    for _ in published:
        received += receive(consumer, 1)
        consumer.acknowledge_cumulative(received[-1])
    assert sorted(contents(received)) == published
    assert all(values == sorted(values) for values in by_key(received).values())
    orders.wait_until_pruned(0, 1, 2, 4)


def test_children_are_given_only_when_their_parent_is_acknowledged(client: Client, orders: Orders):
    consumer = stream(client, orders)
    first = orders.publish()
    orders.split(0)
    second = orders.publish()
    received = receive(consumer, len(first))
    assert contents(received) == first
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=300)
    consumer.acknowledge_cumulative(received[-1])
    assert sorted(contents(receive(consumer, len(second)))) == second


def test_a_cumulative_acknowledgement_covers_all_segments(client: Client, orders: Orders):
    orders.split(0)
    orders.split(1)
    consumer = stream(client, orders)
    published = orders.publish()
    received = receive(consumer, len(published))
    consumer.acknowledge_cumulative(received[9])
    consumer.close()
    again = contents(receive(stream(client, orders), len(published) - 10))
    assert sorted(again) == sorted(contents(received[10:]))


def test_acknowledging_an_earlier_message_takes_nothing_back(client: Client, orders: Orders):
    orders.split(0)
    consumer = stream(client, orders)
    received = receive(consumer, len(orders.publish()))
    consumer.acknowledge_cumulative(received[-1])
    consumer.acknowledge_cumulative(received[0])
    consumer.close()
    with pytest.raises(Timeout):
        stream(client, orders).receive(timeout_millis=100)


def test_stream_consumers_divide_the_segments(client: Client, orders: Orders):
    one = stream(client, orders, consumer_name="a")
    orders.split(0)
    other = stream(client, orders, consumer_name="b")
    published = orders.publish(40)
    received: dict[str, list[bytes]] = {}
    while sum(map(len, received.values())) < len(published):
        for consumer in (one, other):
            try:
                message = consumer.receive(timeout_millis=100)
            except Timeout:
                continue
            received.setdefault(message.topic_name()[-1], []).append(message.data())
            consumer.acknowledge_cumulative(message)
    assert set(received) == {"1", "2"}
    other.close()
    later = orders.publish()
    assert sorted(contents(receive(one, len(later)))) == later


def test_a_stream_consumer_has_no_acknowledgement_of_one_message(client: Client, orders: Orders):
    consumer = stream(client, orders)
    orders.publish(1)
    (message,) = receive(consumer, 1)
    for refused in (consumer.acknowledge, consumer.negative_acknowledge, consumer.seek):
        with pytest.raises(NotAllowed):
            refused(message)
    with pytest.raises(NotAllowed):
        consumer.unsubscribe()


def test_a_stream_consumer_reads_again_what_an_administrator_moved_it_to(
    broker: Any, client: Client, orders: Orders
):
    consumer = stream(client, orders)
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    received = receive(consumer, 14)
    consumer.acknowledge_cumulative(received[-1])
    received += receive(consumer, 14)
    consumer.acknowledge_cumulative(received[-1])
    children = [f"{orders.segments}/{name}" for name in ("0000-7fff-1", "8000-ffff-2")]
    broker.wait_until(lambda: not any(broker.backlog(each, "ledger") for each in children))
    orders.rewind("ledger")
    again = receive(consumer, 14)
    assert contents(again) == published[:14]  # the parent first
    consumer.acknowledge_cumulative(again[-1])
    assert sorted(contents(receive(consumer, 14))) == published[14:]


def test_what_is_never_acknowledged_is_forgotten_in_the_end(
    client: Client, orders: Orders, monkeypatch: pytest.MonkeyPatch
):
    """Only the first: an acknowledgement up to the last message still covers all."""
    monkeypatch.setattr(received_order, "MAX_RECEIVED", 5)
    consumer = stream(client, orders)
    received = receive(consumer, len(orders.publish()))
    consumer.acknowledge_cumulative(received[-1])
    consumer.close()
    with pytest.raises(Timeout):
        stream(client, orders).receive(timeout_millis=100)
