"""What a queue consumer was given too often goes to another topic."""

from typing import Any, Final

import pytest
from scalable_orders import Orders, contents, receive

from pybroker.client import (
    Client,
    Consumer,
    ConsumerDeadLetterPolicy,
    InitialPosition,
    InvalidConfiguration,
    Message,
    Timeout,
)

EARLIEST: Final = InitialPosition.Earliest
SOON: Final = {"initial_position": EARLIEST, "negative_ack_redelivery_delay_ms": 10}


def worker(client: Client, topic: str, **policy: Any) -> Consumer:
    letters = ConsumerDeadLetterPolicy(**{"max_redeliver_count": 1, **policy})
    return client.create_queue_consumer(topic, "workers", dead_letter_policy=letters, **SOON)


def undertaker(client: Client, topic: str, name: str = "undertaker") -> Consumer:
    return client.create_queue_consumer(topic, name, initial_position=EARLIEST)


def refuse(consumer: Consumer, messages: int, times: int) -> list[Message]:
    received: list[Message] = []
    for _ in range(messages * times):
        received.append(consumer.receive(timeout_millis=30_000))
        consumer.negative_acknowledge(received[-1])
    return received


def nothing(consumer: Consumer) -> bool:
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=100)
    return True


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_message_that_nobody_can_process_is_a_dead_letter(
    client: Client, orders: Orders, in_transaction: bool
) -> None:
    consumer = worker(client, orders.name, in_transaction=in_transaction)
    dead = undertaker(client, f"{orders.name}-DLQ")
    orders.producer.send(b"bad", {"colour": "red"}, "key", event_timestamp=7)
    first = refuse(consumer, 1, times=2)[0]
    letter = dead.receive(timeout_millis=30_000)
    assert (letter.data(), letter.partition_key(), letter.event_timestamp()) == (b"bad", "key", 7)
    assert letter.properties() == {
        "colour": "red",
        "REAL_TOPIC": first.topic_name(),
        "REAL_SUBSCRIPTION": "workers",
        "ORIGIN_MESSAGE_ID": str(first.message_id()),
    }
    assert nothing(consumer) and nothing(dead)
    assert consumer.get_backlog() == 0


def test_others_are_delivered_as_ever(client: Client, orders: Orders) -> None:
    consumer = worker(client, orders.name, max_redeliver_count=0)
    published = orders.publish()
    bad = published[3]
    dead = undertaker(client, f"{orders.name}-DLQ")
    for message in receive(consumer, len(published)):
        if message.data() == bad:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert contents(receive(dead, 1)) == [bad]
    assert nothing(consumer)


def test_more_dead_letters_than_a_queue_has_room_for(client: Client, orders: Orders) -> None:
    letters = ConsumerDeadLetterPolicy(0)
    options = {**SOON, "receiver_queue_size": 2, "dead_letter_policy": letters}
    consumer = client.create_queue_consumer(orders.name, "workers", **options)
    published = orders.publish(50)
    refuse(consumer, 50, times=1)
    dead = undertaker(client, f"{orders.name}-DLQ")
    assert sorted(contents(receive(dead, 50))) == published
    assert nothing(consumer)


def test_they_go_on_when_both_topics_are_split(broker: Any, client: Client, orders: Orders) -> None:
    letters = Orders(broker, client)
    consumer = worker(client, orders.name, dead_letter_topic=letters.name, in_transaction=True)
    dead = undertaker(client, letters.name)
    published = orders.publish()
    refuse(consumer, len(published), times=1)
    orders.split(0)
    letters.split(0)
    published += orders.publish()
    refuse(consumer, len(published) + len(published) // 2, times=1)
    assert sorted(contents(receive(dead, len(published)))) == published
    assert nothing(dead)


def test_a_subscription_is_there_before_the_first(
    broker: Any, client: Client, orders: Orders
) -> None:
    consumer = worker(client, orders.name, initial_subscription_name="kept")
    published = orders.publish()
    refuse(consumer, len(published), times=2)
    broker.wait_until(lambda: not consumer.get_backlog())
    late = client.create_queue_consumer(f"{orders.name}-DLQ", "kept")
    assert sorted(contents(receive(late, len(published)))) == published


def test_an_ordinary_topic_has_a_scalable_topic_of_dead_letters(client: Client) -> None:
    name = "persistent://public/default/plain"
    consumer = worker(client, name)
    client.create_producer(name).send(b"bad")
    refuse(consumer, 1, times=2)
    dead = undertaker(client, "topic://public/default/plain-DLQ")
    assert contents(receive(dead, 1)) == [b"bad"]


def test_other_consumers_have_none(client: Client, orders: Orders) -> None:
    letters = ConsumerDeadLetterPolicy(1)
    with pytest.raises(InvalidConfiguration, match="create_queue_consumer"):
        client.subscribe("plain", "s", dead_letter_policy=letters)
    with pytest.raises(InvalidConfiguration, match="create_queue_consumer"):
        client.create_stream_consumer(orders.name, "s", dead_letter_policy=letters)
    with pytest.raises(InvalidConfiguration, match="0 or more"):
        worker(client, orders.name, max_redeliver_count=-1)
