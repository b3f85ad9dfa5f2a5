"""A consumer that succeeds one whose transaction had acknowledged messages cumulatively."""

from collections.abc import Callable

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
