"""The demo's access to topics: fills and reads them, even across deaths of the broker."""

import contextlib
import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from pybroker.base.names import TopicName
from pybroker.client import (
    AlreadyClosed,
    Client,
    ConnectError,
    InitialPosition,
    Message,
    MessageId,
    Outgoing,
    PulsarException,
    Reader,
    ServiceNotReady,
    Timeout,
    encode_batch,
    partition_for_key,
)
from pybroker.demo.report import say

AUDIT: Final = "audit"
_BROKER_AWAY: Final = (AlreadyClosed, ConnectError, ServiceNotReady, Timeout)
_ENTRIES_BETWEEN_WORDS: Final = 100
_READ_MESSAGES: Final = 5000
_READ_ALL_LIMIT_S: Final = 120.0
_DIRECTLY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # by no proxy


def create_partitioned(http_url: str, topic: str, partitions: int) -> None:
    name = TopicName.parse(topic)
    path = f"{name.domain}/{name.tenant}/{name.namespace}/{name.local}"
    request = urllib.request.Request(
        f"{http_url}/admin/v2/{path}/partitions",
        data=str(partitions).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    _DIRECTLY.open(request).close()


def stored_entries(http_url: str, topic: str) -> int:
    """All entries of the topic: messages, including aborted ones, and markers of transactions."""
    name = TopicName.parse(topic)
    path = f"{name.domain}/{name.tenant}/{name.namespace}/{name.local}"
    with _DIRECTLY.open(f"{http_url}/admin/v2/{path}/internalStats") as answer:
        return int(json.load(answer)["numberOfEntries"])


def keep_everything(client: Client, topics: Iterable[str]) -> None:
    """Creates a subscription that acknowledges nothing, so that all messages stay for the final
    count, and the topics for a job that takes more than a minute to start.
    """
    for topic in topics:
        client.subscribe(topic, AUDIT, initial_position=InitialPosition.Earliest).close()


def fill(client: Client, topic: str, messages: Iterable[Outgoing], per_entry: int) -> int:
    """Publishes messages in batches of `per_entry`. Returns the number of messages."""
    partitions = client.get_topic_partitions(topic)
    producers = [client.create_producer(name) for name in partitions]
    open_entries: list[list[Outgoing]] = [[] for _ in partitions]
    count = entries = 0

    def publish(index: int) -> None:
        nonlocal entries
        producers[index].send_batch(encode_batch(open_entries[index]))
        open_entries[index] = []
        entries += 1
        if entries % _ENTRIES_BETWEEN_WORDS == 0:
            say(f"published {count:,} messages to {topic}")

    for message in messages:
        key = message.partition_key
        index = partition_for_key(key, len(partitions)) if key else entries % len(partitions)
        open_entries[index].append(message)
        count += 1
        if len(open_entries[index]) == per_entry:
            publish(index)
    for index, rest in enumerate(open_entries):
        if rest:
            publish(index)
    for producer in producers:
        producer.close()
    return count


class Tail:
    """Reads a topic's messages from the beginning, each once, even if the broker dies."""

    def __init__(self, service_url: str, topic: str) -> None:
        self._service_url = service_url
        self._topic = topic
        self._client: Client | None = None
        self._reader: Reader | None = None
        self._last = MessageId.earliest

    def read(self, timeout_ms: int) -> list[Message]:
        """New messages; none if none came in time or the broker is down."""
        try:
            messages = self._open().batch_read(_READ_MESSAGES, timeout_ms)
        except _BROKER_AWAY:
            self.close()
            return []
        if messages:
            self._last = messages[-1].message_id()
        return messages

    def is_at_end(self) -> bool:
        try:
            return not self._open().has_message_available()
        except _BROKER_AWAY:
            self.close()
            return False

    def _open(self) -> Reader:
        if self._reader is None:
            self._client = Client(self._service_url)
            self._reader = self._client.create_reader(self._topic, self._last)
        return self._reader

    def close(self) -> None:
        client, self._client, self._reader = self._client, None, None
        if client is not None:
            with contextlib.suppress(PulsarException):
                client.close()


def read_all(service_url: str, topics: Sequence[str]) -> Iterator[Message]:
    """All messages that new readers get now. Raises TimeoutError if none comes for two minutes,
    although a topic has more.
    """
    for topic in topics:
        tail = Tail(service_url, topic)
        give_up_at = time.monotonic() + _READ_ALL_LIMIT_S
        while not tail.is_at_end():
            if messages := tail.read(1000):
                give_up_at = time.monotonic() + _READ_ALL_LIMIT_S
            elif time.monotonic() > give_up_at:
                raise TimeoutError(f"the broker did not give the rest of {topic} in time")
            yield from messages
        tail.close()


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(0.1)
    return True
