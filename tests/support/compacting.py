"""Compaction as its tests use it: publish by key, compact, read compacted."""

import json
import urllib.request
from typing import Any

from pybroker.base.names import TopicName, compacted_logs
from pybroker.client import Client, MessageId
from pybroker.testing import RunningBroker

SOON_MS = 30_000


def compact(broker: RunningBroker, topic: str) -> None:
    """Compact, and wait for the end."""
    broker.call(lambda running: _compact(running, topic))


async def _compact(running: Any, topic: str) -> None:
    found = await running.topics.get(topic)
    found.compaction.start()
    await found.tasks.ended()
    assert (found.compaction.status.value, found.compaction.last_error) == ("SUCCESS", "")


def read(client: Client, topic: str, compacted: bool = True, **options: Any) -> list[Any]:
    """The keys and values of all messages."""
    options.setdefault("start_message_id", MessageId.earliest)
    reader = client.create_reader(topic, is_read_compacted=compacted, **options)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(timeout_millis=SOON_MS))
    reader.close()
    return found


def pairs(messages: list[Any]) -> list[tuple[str, bytes]]:
    return [(message.partition_key(), message.data()) for message in messages]


def send(client: Client, topic: str, *values: tuple[str, bytes], **options: Any) -> None:
    options.setdefault("batching_enabled", False)
    with client.create_producer(topic, **options) as producer:
        for key, value in values:
            producer.send_async(value, partition_key=key)
        producer.flush()


def logs_of(broker: RunningBroker, topic: str) -> list[str]:
    async def look(running: Any) -> list[str]:
        return list(running.ledgers.names(compacted_logs(TopicName.parse(topic))))

    return broker.call(look)


def http(method: str, url: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        body = answer.read()
    return json.loads(body) if body else None
