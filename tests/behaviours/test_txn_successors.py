"""Messages that several consumers were given, one after the other, and acknowledge in transactions:
no two committed transactions consume the same message.
"""

from collections.abc import Callable
from typing import Any

import pytest
from scenario import (
    SINGLE,
    acknowledge_up_to,
    assert_nothing_more,
    publish,
    publish_batch,
    receive,
    subscribe,
)

from pybroker.client import Client, ConsumerType, TransactionConflict


@SINGLE
@pytest.mark.parametrize("publish", [publish, publish_batch])  # entries, or a part of a batch
def test_what_a_successor_was_given_before_the_commit_is_not_consumed_twice(
    client: Client, topic: str, kind: ConsumerType, publish: Callable[..., None]
) -> None:
    """A processor dies with a transaction that commits late. Its successor has processed the same
    messages.
    """
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 10)
    late = client.new_transaction()
    consumer.acknowledge_cumulative(receive(consumer, 5)[-1], txn=late)
    consumer.close()
    successor = subscribe(client, topic, consumer_type=kind)
    messages = receive(successor, 10)
    late.commit()
    refused = client.new_transaction()
    with pytest.raises(TransactionConflict, match="redelivery"):
        successor.acknowledge_cumulative(messages[-1], txn=refused)
    refused.abort()
    successor.redeliver_unacknowledged_messages()
    messages = receive(successor, 5)
    assert [message.data() for message in messages] == [b"%d" % number for number in range(5, 10)]
    acknowledge_up_to(successor, messages[-1], client)
    assert_nothing_more(successor)


@SINGLE
def test_a_consumer_goes_on_in_its_transaction_after_a_redelivery(
    client: Client, topic: str, kind: ConsumerType
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 10)
    txn = client.new_transaction()
    consumer.acknowledge_cumulative(receive(consumer, 5)[-1], txn=txn)
    consumer.redeliver_unacknowledged_messages()
    messages = receive(consumer, 10)
    consumer.acknowledge_cumulative(messages[7], txn=txn)
    txn.commit()
    acknowledge_up_to(consumer, messages[-1], client)
    assert_nothing_more(consumer)


def _give_to_two(client: Client, topic: str) -> tuple[Any, list[Any], Any, list[Any]]:
    """A Failover consumer that is no longer active, and the active one, with the ten messages that
    both were given.
    """
    first = subscribe(client, topic, consumer_type=ConsumerType.Failover, consumer_name="b")
    publish(client, topic, 10)
    messages = receive(first, 10)
    second = subscribe(client, topic, consumer_type=ConsumerType.Failover, consumer_name="a")
    return first, messages, second, receive(second, 10)


def _refuses(consumer: Any, message: Any, client: Client) -> None:
    """A cumulative acknowledgement in a transaction."""
    refused = client.new_transaction()
    with pytest.raises(TransactionConflict, match="redelivery"):
        consumer.acknowledge_cumulative(message, txn=refused)
    refused.abort()


@pytest.mark.parametrize("ends", ["before", "after"])
@pytest.mark.parametrize("cumulative", [True, False])
def test_what_a_consumer_acknowledges_after_another_became_active_is_consumed_once(
    client: Client, topic: str, cumulative: bool, ends: str
) -> None:
    first, messages, second, given = _give_to_two(client, topic)
    late = client.new_transaction()
    if cumulative:
        first.acknowledge_cumulative(messages[4], txn=late)
    else:
        for message in messages[:5]:
            first.acknowledge(message, txn=late)
    if ends == "before" or cumulative:  # otherwise see `take_cumulative`
        late.commit()
    _refuses(second, given[-1], client)
    if ends == "after" and not cumulative:
        late.commit()
    second.redeliver_unacknowledged_messages()
    given = receive(second, 5)
    assert [message.data() for message in given] == [b"%d" % number for number in range(5, 10)]
    acknowledge_up_to(second, given[-1], client)
    assert_nothing_more(second)


def test_an_aborted_transaction_of_another_consumer_hinders_nobody(
    client: Client, topic: str
) -> None:
    first, messages, second, given = _give_to_two(client, topic)
    late = client.new_transaction()
    first.acknowledge_cumulative(messages[4], txn=late)
    late.abort()
    acknowledge_up_to(second, given[-1], client)
    assert_nothing_more(second)


def test_what_others_consumed_is_refused_also_to_a_consumer_that_is_not_active(
    client: Client, topic: str
) -> None:
    """It may have processed more than the active one has acknowledged."""
    first, messages, second, given = _give_to_two(client, topic)
    acknowledge_up_to(second, given[4], client)
    _refuses(first, messages[-1], client)
    first.redeliver_unacknowledged_messages()
    acknowledge_up_to(second, given[-1], client)


@SINGLE
@pytest.mark.parametrize("breaks", ["before", "after"])
def test_what_others_consumed_is_refused_also_after_the_connection_broke(
    client: Client, topic: str, kind: ConsumerType, shared_broker: Any, breaks: str
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    publish(client, topic, 10)
    late = client.new_transaction()
    consumer.acknowledge_cumulative(receive(consumer, 5)[-1], txn=late)
    consumer.close()
    successor = subscribe(client, topic, consumer_type=kind)
    messages = receive(successor, 10)
    if breaks == "before":
        _disconnect_all(shared_broker, topic)
        receive(successor, 10)
        late.commit()
    else:
        late.commit()
        _disconnect_all(shared_broker, topic)
        receive(successor, 5)
    _refuses(successor, messages[-1], client)


def _disconnect_all(broker: Any, topic: str) -> None:
    """The consumers, which subscribe again."""

    async def disconnect(running: Any) -> None:
        found = await running.topics.get(topic)
        found.subscriptions["sub"].dispatch.disconnect_consumers("test")

    broker.call(disconnect)
