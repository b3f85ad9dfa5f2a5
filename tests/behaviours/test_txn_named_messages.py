"""A cumulative acknowledgement of this project's client names the messages that it covers, so that
nothing is refused that is right. The same programs, with single messages and with batches.
"""

from typing import Any

import pytest
from scenario import (
    NOTHING_MS,
    SINGLE,
    acknowledge_up_to,
    assert_nothing_more,
    publish,
    receive,
    subscribe,
)
from test_txn_second_copies import PUBLISHED, Publish, data, disconnect_all

from pybroker.client import Client, ConsumerType, MessageId, Timeout, TransactionConflict


def individually(consumer: Any, messages: list[Any], client: Client, commit: bool) -> None:
    txn = client.new_transaction()
    consumer.acknowledge(messages, txn=txn)
    if commit:
        txn.commit()
    else:
        txn.abort()


@SINGLE
@PUBLISHED
def test_what_an_abort_gave_back_is_in_nobodys_way(
    client: Client, topic: str, kind: ConsumerType, publish: Publish
) -> None:
    """Behind the acknowledgement, or acknowledged again before it, in the same transaction or an
    earlier one.
    """
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 60)
    held = receive(consumer, 60)
    individually(consumer, [held[50]], client, commit=False)
    acknowledge_up_to(consumer, held[9], client)
    individually(consumer, [held[10]], client, commit=False)
    late = {int(message.data()): message for message in receive(consumer, 2)}
    assert set(late) == {10, 50}
    individually(consumer, [late[10]], client, commit=True)
    acknowledge_up_to(consumer, held[20], client)
    individually(consumer, held[21:25], client, commit=False)
    txn = client.new_transaction()
    consumer.acknowledge(held[21:25], txn=txn)
    consumer.acknowledge_cumulative(held[30], txn=txn)
    txn.commit()
    consumer.close()
    again = subscribe(client, topic, consumer_type=kind)
    assert data(receive(again, 29)) == list(range(31, 60))
    assert_nothing_more(again)


@SINGLE
def test_very_many_messages_of_an_aborted_transaction_may_lie_before_it(
    client: Client, topic: str, kind: ConsumerType
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind, receiver_queue_size=2000)
    publish(client, topic, 1600, block_if_queue_full=True)
    held = receive(consumer, 1600)
    individually(consumer, held[:1500], client, commit=False)
    acknowledge_up_to(consumer, held[-1], client)
    assert data(receive(consumer, 1500)) == list(range(1500))  # nobody has consumed them


@SINGLE
@PUBLISHED
@pytest.mark.parametrize("queue_size", [1, 3, 1000])
def test_after_a_broken_connection_a_program_goes_on_behind_its_own_commit(
    client: Client,
    topic: str,
    kind: ConsumerType,
    publish: Publish,
    shared_broker: Any,
    queue_size: int,
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind, receiver_queue_size=queue_size)
    publish(client, topic, 40)
    held = receive(consumer, 10)
    disconnect_all(shared_broker, topic)
    acknowledge_up_to(consumer, held[-1], client)
    more = receive(consumer, 30)
    assert data(more) == list(range(10, 40))
    acknowledge_up_to(consumer, more[0], client)
    acknowledge_up_to(consumer, more[-1], client)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
def test_all_chunks_of_a_message_are_acknowledged(
    client: Client, topic: str, kind: ConsumerType
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    with client.create_producer(topic, batching_enabled=False, chunking_enabled=True) as producer:
        producer.send(b"0" * (11 << 20))
        producer.send(b"1")
    held = receive(consumer, 2)
    acknowledge_up_to(consumer, held[1], client)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
@PUBLISHED
@pytest.mark.parametrize("by_index", [True, False])
def test_plain_acknowledgements_of_the_same_batch_count(
    client: Client, topic: str, kind: ConsumerType, publish: Publish, by_index: bool
) -> None:
    options: dict[str, Any] = {"batch_index_ack_enabled": by_index}
    consumer = subscribe(client, topic, consumer_type=kind, **options)
    publish(client, topic, 6)
    held = receive(consumer, 6)
    consumer.acknowledge(held[1])
    consumer.acknowledge(held[4])
    acknowledge_up_to(consumer, held[5], client)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
def test_an_acknowledgement_waits_until_the_consumer_is_connected_again(
    client: Client, topic: str, kind: ConsumerType, shared_broker: Any
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 5)
    held = receive(consumer, 5)
    for number, message in enumerate(held):
        txn = client.new_transaction()
        disconnect_all(shared_broker, topic)
        if number % 2:
            consumer.acknowledge(message, txn=txn)
        else:
            consumer.acknowledge_cumulative(message, txn=txn)
        txn.commit()
    with pytest.raises(Timeout):
        while True:
            consumer.receive(timeout_millis=NOTHING_MS)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
@PUBLISHED
def test_what_came_after_the_last_message_is_acknowledged_before_it(
    client: Client, topic: str, kind: ConsumerType, publish: Publish
) -> None:
    """An acknowledgement up to a message does not say whether it means what was received later."""
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 3)
    held = receive(consumer, 3)
    individually(consumer, held[:1], client, commit=False)
    (late,) = receive(consumer, 1)
    refused = client.new_transaction()
    with pytest.raises(TransactionConflict, match="was received after it"):
        consumer.acknowledge_cumulative(held[2], txn=refused)
    refused.abort()
    with client.new_transaction() as txn:
        consumer.acknowledge(late, txn=txn)
        consumer.acknowledge_cumulative(held[2], txn=txn)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
@PUBLISHED
def test_what_comes_again_is_acknowledged_with_what_comes_after_it(
    client: Client, topic: str, kind: ConsumerType, publish: Publish
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 3)
    held = receive(consumer, 3)
    individually(consumer, held[:1], client, commit=False)
    receive(consumer, 1)
    publish(client, topic, 1)
    acknowledge_up_to(consumer, *receive(consumer, 1), client)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


@SINGLE
@PUBLISHED
def test_what_was_held_before_a_seek_is_in_nobodys_way(
    client: Client, topic: str, kind: ConsumerType, publish: Publish
) -> None:
    """A seek gives back what the application has not acknowledged, and what it has."""
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 8)
    before = receive(consumer, 6)
    acknowledge_up_to(consumer, before[2], client)
    consumer.seek(MessageId.earliest)
    again = receive(consumer, 8)
    for message in again[3], again[5], again[7]:
        acknowledge_up_to(consumer, message, client)
    assert data(before) == list(range(6))  # it still has them
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))
