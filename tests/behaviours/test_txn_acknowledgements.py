"""Acknowledging within transactions: conflicts, messages that come back, messages that do not."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from scenario import (
    SINGLE,
    SOON_MS,
    acknowledge_up_to,
    assert_nothing_more,
    drain,
    publish,
    publish_batch,
    receive,
    subscribe,
)

import pybroker.testing
from pybroker.client import Client, ConsumerType, TransactionConflict


def test_a_transactional_acknowledgement_is_not_redelivered_after_the_commit(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 3)
    with client.new_transaction() as txn:
        for message in receive(consumer, 3):
            consumer.acknowledge(message, txn=txn)
    consumer.close()
    assert_nothing_more(subscribe(client, topic))


def test_an_aborted_acknowledgement_comes_back(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    publish(client, topic, 3)
    txn = client.new_transaction()
    for message in receive(consumer, 3):
        consumer.acknowledge(message, txn=txn)
    txn.abort()
    assert sorted(drain(consumer, 3)) == [b"0", b"1", b"2"]


def test_two_transactions_cannot_acknowledge_the_same_message(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 1)
    message = consumer.receive(timeout_millis=SOON_MS)
    first, second = client.new_transaction(), client.new_transaction()
    consumer.acknowledge(message, txn=first)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(message, txn=second)
    second.abort()
    first.abort()
    retry = client.new_transaction()
    consumer.acknowledge(message, txn=retry)
    retry.commit()
    consumer.close()
    assert_nothing_more(subscribe(client, topic))


def test_a_message_that_is_acknowledged_already_conflicts(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 1)
    message = consumer.receive(timeout_millis=SOON_MS)
    with client.new_transaction() as txn:
        consumer.acknowledge(message, txn=txn)
    txn = client.new_transaction()
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(message, txn=txn)
    txn.abort()


def test_different_indexes_of_a_batch_do_not_conflict_but_the_same_one_does(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    publish_batch(client, topic, 4)
    messages = receive(consumer, 4)
    first, second, third = (client.new_transaction() for _ in range(3))
    consumer.acknowledge(messages[0], txn=first)
    consumer.acknowledge(messages[1], txn=second)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge(messages[0], txn=third)
    third.abort()
    first.abort()
    second.commit()
    consumer.close()
    again = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    assert sorted(drain(again, 3)) == [b"0", b"2", b"3"]
    assert_nothing_more(again)


def test_a_cumulative_acknowledgement_at_or_below_another_conflicts(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 5)
    messages = receive(consumer, 5)
    txn = client.new_transaction()
    consumer.acknowledge_cumulative(messages[2], txn=txn)
    for lower in (messages[1], messages[2]):
        with pytest.raises(TransactionConflict):
            consumer.acknowledge_cumulative(lower, txn=txn)
    txn.abort()


def test_a_second_transaction_cannot_acknowledge_cumulatively_meanwhile(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 5)
    messages = receive(consumer, 5)
    first, second = client.new_transaction(), client.new_transaction()
    consumer.acknowledge_cumulative(messages[1], txn=first)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge_cumulative(messages[4], txn=second)
    second.abort()
    first.commit()
    third = client.new_transaction()
    with pytest.raises(TransactionConflict):
        consumer.acknowledge_cumulative(messages[1], txn=third)
    third.abort()


def test_after_a_cumulative_abort_the_whole_range_comes_again_in_order(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 5)
    messages = receive(consumer, 5)
    txn = client.new_transaction()
    consumer.acknowledge_cumulative(messages[4], txn=txn)
    txn.abort()
    consumer.redeliver_unacknowledged_messages()
    assert drain(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]


@SINGLE
@pytest.mark.parametrize("aborted_first", [False, True])
@pytest.mark.parametrize("queue", [1, 10, 100])
def test_a_job_acknowledges_by_ids_further_than_its_queue_reaches(
    client: Client, topic: str, kind: ConsumerType, queue: int, aborted_first: bool
) -> None:
    """As Spark jobs do: they know the ids from elsewhere, here from the receipts."""
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(150)]
    job = subscribe(client, topic, consumer_type=kind, receiver_queue_size=queue)
    assert job.receive(timeout_millis=SOON_MS).data() == b"0"
    for end in ids[49::50]:
        if aborted_first:
            attempt = client.new_transaction()
            job.acknowledge_cumulative(end, txn=attempt)
            attempt.abort()
        with client.new_transaction() as txn:
            job.acknowledge_cumulative(end, txn=txn)
    job.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
@pytest.mark.parametrize("in_a_transaction", [True, False])
def test_what_an_aborted_transaction_held_cumulatively_is_lost_to_no_successor(
    client: Client, topic: str, kind: ConsumerType, in_a_transaction: bool
) -> None:
    """A processor dies with an open transaction. Its successor acknowledges cumulatively."""
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 10)
    left_open = client.new_transaction()
    consumer.acknowledge_cumulative(receive(consumer, 5)[-1], txn=left_open)
    consumer.close()
    successor = subscribe(client, topic, consumer_type=kind)
    messages = receive(successor, 6)
    assert [message.data() for message in messages] == [b"%d" % number for number in range(6)]
    refused = client.new_transaction()
    with pytest.raises(TransactionConflict):
        successor.acknowledge_cumulative(messages[-1], txn=refused)
    refused.abort()
    left_open.abort()
    acknowledge_up_to(successor, messages[-1], client if in_a_transaction else None)
    successor.close()
    assert drain(subscribe(client, topic, consumer_type=kind), 4) == [b"6", b"7", b"8", b"9"]


@SINGLE
@pytest.mark.parametrize("in_a_transaction", [True, False])
def test_a_cumulative_acknowledgement_does_not_cover_what_another_transaction_kept_back(
    client: Client, topic: str, kind: ConsumerType, in_a_transaction: bool
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 5)
    left_open = client.new_transaction()
    consumer.acknowledge(receive(consumer, 3)[-1], txn=left_open)
    consumer.close()
    successor = subscribe(client, topic, consumer_type=kind)
    messages = receive(successor, 4)
    assert [message.data() for message in messages] == [b"0", b"1", b"3", b"4"]
    acknowledge_up_to(successor, messages[-1], client if in_a_transaction else None)
    left_open.abort()
    assert drain(successor, 1) == [b"2"]
    assert_nothing_more(successor)


@pytest.mark.parametrize("killed", [False, True])
def test_after_a_restart_an_older_acknowledgement_does_not_cover_what_an_abort_gave_back(
    topic: str, killed: bool
) -> None:
    """The client acknowledges what it received before the restart."""
    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        consumer = subscribe(client, topic)
        publish(client, topic, 5)
        left_open = client.new_transaction()
        consumer.acknowledge(receive(consumer, 3)[-1], txn=left_open)
        consumer.close()
        successor = subscribe(client, topic, receiver_queue_size=1)
        messages = receive(successor, 4)
        assert [message.data() for message in messages] == [b"0", b"1", b"3", b"4"]
        left_open.abort()
        assert drain(successor, 1, acknowledge=False) == [b"2"]
        if killed:
            broker.kill_and_restart()
        else:
            broker.restart()
        assert drain(successor, 1, acknowledge=False) == [b"0"]
        successor.acknowledge_cumulative(messages[-1])
        successor.close()
        again = subscribe(client, topic)
        assert drain(again, 1) == [b"2"]
        assert_nothing_more(again)
        client.close()


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_cumulative_acknowledgement_is_refused_on_shared_subscriptions(
    client: Client, topic: str, kind: ConsumerType
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 1)
    message = consumer.receive(timeout_millis=SOON_MS)
    txn = client.new_transaction()
    with pytest.raises(Exception, match=r"(?i)cumulative"):
        consumer.acknowledge_cumulative(message, txn=txn)
    txn.abort()


@pytest.mark.parametrize(
    "kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover]
)
def test_an_abort_gives_the_same_messages_again_in_order_by_key(
    client: Client, topic: str, kind: ConsumerType
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    producer = client.create_producer(topic)
    for number in range(12):
        producer.send(b"%d" % number, partition_key=f"key-{number % 3}")
    txn = client.new_transaction()
    for message in receive(consumer, 12):
        consumer.acknowledge(message, txn=txn)
    txn.abort()
    if kind is ConsumerType.Failover:
        consumer.redeliver_unacknowledged_messages()
    by_key: dict[str, list[int]] = defaultdict(list)
    for message in receive(consumer, 12):
        by_key[message.partition_key()].append(int(message.data()))
        consumer.acknowledge(message)
    assert by_key == {f"key-{key}": list(range(key, 12, 3)) for key in range(3)}


def test_cumulative_and_individual_acknowledgements_of_two_transactions_both_apply(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 6)
    messages = receive(consumer, 6)
    cumulative, individual = client.new_transaction(), client.new_transaction()
    consumer.acknowledge_cumulative(messages[2], txn=cumulative)
    consumer.acknowledge(messages[4], txn=individual)
    individual.commit()
    cumulative.commit()
    consumer.close()
    again = subscribe(client, topic)
    assert drain(again, 2) == [b"3", b"5"]
    assert_nothing_more(again)


def test_pending_acknowledgements_are_withheld_across_a_restart_and_commit_after_it(
    topic: str,
) -> None:
    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
        publish(client, topic, 4)
        messages = receive(consumer, 4)
        txn = client.new_transaction()
        for message in messages[:2]:
            consumer.acknowledge(message, txn=txn)
        broker.restart()
        assert sorted(drain(consumer, 2)) == [b"2", b"3"], "pending ones are withheld"
        txn.commit()
        consumer.close()
        assert_nothing_more(subscribe(client, topic, consumer_type=ConsumerType.Shared))
        client.close()


def test_a_plain_acknowledgement_of_a_pending_message_is_dropped(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    publish(client, topic, 1)
    message = consumer.receive(timeout_millis=SOON_MS)
    txn = client.new_transaction()
    consumer.acknowledge(message, txn=txn)
    consumer.acknowledge(message)
    txn.abort()
    assert drain(consumer, 1) == [b"0"]


def test_a_pending_message_is_not_redelivered_whatever_the_client_asks(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    publish(client, topic, 2)
    messages = receive(consumer, 2)
    txn = client.new_transaction()
    consumer.acknowledge(messages[0], txn=txn)
    consumer.redeliver_unacknowledged_messages()
    assert drain(consumer, 1) == [messages[1].data()]
    assert_nothing_more(consumer)
    txn.commit()


@pytest.mark.slow
def test_the_pending_ack_log_stays_bounded(client: Client, shared_broker: Any, topic: str) -> None:
    consumer = subscribe(client, topic)
    publish(client, topic, 60)
    for message in receive(consumer, 60):
        with client.new_transaction() as txn:
            consumer.acknowledge(message, txn=txn)
    shared_broker.wait_until(lambda: shared_broker.pending_ack_log_entries(topic, "sub") < 20)


def test_the_unacked_count_returns_after_an_abort(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared, receiver_queue_size=3)
    publish(client, topic, 3)
    messages = receive(consumer, 3)
    shared_broker.wait_until(lambda: shared_broker.unacked_messages(topic, "sub") == 3)
    txn = client.new_transaction()
    for message in messages:
        consumer.acknowledge(message, txn=txn)
    assert shared_broker.unacked_messages(topic, "sub") == 0
    txn.abort()
    shared_broker.wait_until(lambda: shared_broker.unacked_messages(topic, "sub") == 3)


def test_several_subscriptions_are_acknowledged_in_one_transaction(
    client: Client, topics: Callable[[int], list[str]]
) -> None:
    names = topics(2)
    consumers = [subscribe(client, name, f"sub-{name[-1]}") for name in names]
    for name in names:
        publish(client, name, 2)
    with client.new_transaction() as txn:
        for consumer in consumers:
            for message in receive(consumer, 2):
                consumer.acknowledge(message, txn=txn)
    for name, consumer in zip(names, consumers, strict=True):
        consumer.close()
        assert_nothing_more(subscribe(client, name, f"sub-{name[-1]}"))


def test_redelivery_counts_go_on_across_aborts(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    publish(client, topic, 1)
    counts = []
    for _ in range(3):
        message = consumer.receive(timeout_millis=SOON_MS)
        counts.append(message.redelivery_count())
        txn = client.new_transaction()
        consumer.acknowledge(message, txn=txn)
        txn.abort()
    assert counts == [0, 1, 2]


def test_input_is_acknowledged_exactly_when_output_is_visible_after_a_kill(
    topics: Callable[[int], list[str]],
) -> None:
    source, sink = topics(2)
    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        output = client.create_producer(sink)
        consumer = subscribe(client, source)
        publish(client, source, 3)
        committed, lost, _ = receive(consumer, 3)
        with client.new_transaction() as txn:
            output.send(committed.data(), txn=txn)
            consumer.acknowledge(committed, txn=txn)
        txn = client.new_transaction(timeout_ms=60_000)
        output.send(lost.data(), txn=txn)
        consumer.acknowledge(lost, txn=txn)
        broker.kill()
        client.close()
        broker.restart()

        again = Client(broker.service_url, enable_transaction=True)
        results = subscribe(again, sink)
        again.create_producer(sink).send(b"behind")
        broker.clock.advance("61s")
        assert drain(results, 2) == [b"0", b"behind"], "the open transaction timed out"
        # The source may be told of the timeout just after the sink, and only then give b"1" back.
        assert sorted(drain(subscribe(again, source), 2)) == [b"1", b"2"]
        again.close()


def test_subscriptions_whose_names_join_to_the_same_are_not_confused(
    topics: Callable[[int], list[str]],
) -> None:
    """Topic "orders", subscription "eu-billing"; topic "orders-eu", subscription "billing"."""
    orders = topics(1)[0]
    pairs = [(f"{orders}-eu", "billing"), (orders, "eu-billing")]
    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        consumers = []
        for topic, name in pairs:
            consumers.append(subscribe(client, topic, name))
            publish(client, topic, 5)
        received = [receive(consumer, 5) for consumer in consumers]
        with client.new_transaction() as txn:
            consumers[0].acknowledge(received[0][0], txn=txn)
        with client.new_transaction() as txn:
            consumers[1].acknowledge_cumulative(received[1][4], txn=txn)
        client.close()  # otherwise its consumers would reconnect, before or after the new ones
        broker.kill_and_restart()
        with Client(broker.service_url) as again:
            assert drain(subscribe(again, *pairs[0]), 4) == [b"1", b"2", b"3", b"4"]
            assert_nothing_more(subscribe(again, *pairs[1]))


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_message_that_came_late_behind_a_plain_cumulative_acknowledgement_is_not_lost(
    client: Client, topic: str, name: str
) -> None:
    """Its client may have dropped it. A new consumer, after this one has closed, receives it."""
    processor = subscribe(client, topic, consumer_name="processor")
    publish(client, topic, 3)
    txn = client.new_transaction()
    processor.acknowledge(receive(processor, 3)[1], txn=txn)
    processor.close()
    consumer = subscribe(client, topic, consumer_name="first")
    _, last = receive(consumer, 2)
    consumer.acknowledge_cumulative(last)
    txn.abort()
    assert drain(consumer, 1, acknowledge=False) == [b"1"]
    publish(client, topic, 1)
    (last,) = receive(consumer, 1)
    consumer.acknowledge_cumulative(last)
    consumer.close()
    consumer = subscribe(client, topic, consumer_name=name)
    publish(client, topic, 1)
    late, last = receive(consumer, 2)
    assert late.data() == b"1"
    consumer.acknowledge_cumulative(last)
    consumer.close()
    assert_nothing_more(subscribe(client, topic))
