"""Scalable topics of a broker in this process, for tests of the Python client."""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from pybroker.base.names import any_topic
from pybroker.broker.scalable.subscriptions import WholeSubscriptions
from pybroker.client import Client, Consumer, InitialPosition, Message

_numbers = count(1)
KEYS = [f"key {number}" for number in range(7)]


class Orders:
    """A scalable topic with numbered messages of several keys."""

    def __init__(self, broker: Any, client: Client) -> None:
        self.name = f"topic://public/default/orders-{next(_numbers)}"
        self._broker = broker
        self._key = any_topic(self.name)
        self._sent = 0
        self.producer = client.create_producer(self.name)

    def publish(self, messages: int = 14, **options: Any) -> list[bytes]:
        """Returns their contents, in order."""
        numbers = range(self._sent, self._sent + messages)
        self._sent += messages
        for number in numbers:
            key = KEYS[number % len(KEYS)]
            self.producer.send_async(b"%05d" % number, partition_key=key, **options)
        self.producer.flush()
        return [b"%05d" % number for number in numbers]

    @property
    def segments(self) -> str:
        return self.name.replace("topic", "segment", 1)

    def split(self, number: int) -> None:
        self._ask(lambda scalable: scalable.split(self._key, number))

    def merge(self, one: int, other: int) -> None:
        self._ask(lambda scalable: scalable.merge(self._key, one, other))

    def rebucket(self, number: int, buckets: int) -> None:
        self._ask(lambda scalable: scalable.rebucket(self._key, number, buckets))

    def prune(self) -> list[int]:
        return self._ask(lambda scalable: scalable.pruner.prune_unneeded(self._key))

    def wait_until_pruned(self, *numbers: int) -> None:
        left = set(numbers)

        def pruned() -> bool:
            left.difference_update(self.prune())
            return not left

        self._broker.wait_until(pruned)

    def rewind(self, subscription: str) -> None:
        """To the beginning."""

        async def seek(running: Any) -> None:
            topics = running.topics
            whole = WholeSubscriptions(topics, topics.scalable)
            await whole.seek(self._key, subscription, 0)

        self._broker.call(seek)

    def delete(self) -> None:
        self._ask(lambda scalable: scalable.delete(self._key, True))

    def _ask(self, work: Callable[[Any], Any]) -> Any:
        return self._broker.call(lambda running: work(running.topics.scalable))


def receive(consumer: Any, messages: int) -> list[Message]:
    return [consumer.receive(timeout_millis=30_000) for _ in range(messages)]


def contents(messages: Iterable[Message]) -> list[bytes]:
    return [bytes(each.data()) for each in messages]


def queue(client: Client, orders: Orders, **options: Any) -> Consumer:
    options.setdefault("initial_position", InitialPosition.Earliest)
    return client.create_queue_consumer(orders.name, "workers", **options)


def stream(client: Client, orders: Orders, **options: Any) -> Any:
    options.setdefault("initial_position", InitialPosition.Earliest)
    return client.create_stream_consumer(orders.name, "ledger", **options)


def by_key(messages: Iterable[Message]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for each in messages:
        found.setdefault(each.partition_key(), []).append(bytes(each.data()))
    return found
