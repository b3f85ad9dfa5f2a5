"""Delayed messages and compacted topics, through the official Python client."""

import itertools
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pulsar
import pytest
from test_official_python_client import (
    SOON_MS,
    assert_nothing_more,
    contents_of,
    earliest,
    official,
    receive_all,
)

import pybroker.testing

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(broker: Any) -> Iterator[pulsar.Client]:
    client = official(broker)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/compacted-{next(_numbers)}"


@pytest.mark.slow  # delays of seven seconds
@pytest.mark.feature("delayed delivery")
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_delayed_messages_come_in_the_order_of_their_times(
    client: pulsar.Client, topic: str, kind: Any
) -> None:
    consumer = client.subscribe(topic, "sub", consumer_type=kind)
    producer = client.create_producer(topic)
    producer.send(b"after", deliver_after=timedelta(seconds=7))
    producer.send(b"at", deliver_at=time.time_ns() // 1_000_000 + 4000)
    producer.send(b"now")
    received = [consumer.receive(SOON_MS) for _ in range(3)]
    assert [message.data() for message in received] == [b"now", b"at", b"after"]
    assert [message.redelivery_count() for message in received] == [0, 0, 0]


def test_exclusive_consumers_get_delayed_messages_at_once(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    assert consumer.receive(SOON_MS).data() == b"delayed"


@pytest.mark.feature("compaction", "table view")
class TestCompaction:
    def compact(self, broker: Any, topic: str) -> None:
        async def work(running: Any) -> None:
            found = await running.topics.get(topic)
            found.compaction.start()
            await found.tasks.ended()

        broker.call(work)

    def read_compacted(self, client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            message = reader.read_next(SOON_MS)
            found.append((message.partition_key(), message.data()))
        reader.close()
        return found

    @pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
    @pytest.mark.parametrize(
        "compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZLib]
    )
    def test_readers_consumers_and_table_views_get_the_last_of_each_key(
        self, broker: Any, client: pulsar.Client, topic: str, batched: bool, compression: Any
    ):
        producer = client.create_producer(
            topic, batching_enabled=batched, compression_type=compression
        )
        values = [("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4"), ("b", b""), ("c", b"5")]
        for key, value in values:
            producer.send_async(value, lambda *_: None, partition_key=key)
        producer.flush()
        self.compact(broker, topic)
        # This client cannot decompress an empty message, so compaction leaves it uncompressed.
        assert self.read_compacted(client, topic) == [("a", b"4"), ("b", b""), ("c", b"5")]
        producer.send(b"6", partition_key="d")
        consumer = earliest(client, topic, is_read_compacted=True)
        messages = receive_all(consumer, 4)
        assert contents_of(messages) == [b"4", b"", b"5", b"6"]
        assert_nothing_more(consumer)
        view = client.create_table_view(topic)
        assert {key: view.get(key) for key in "abcd"} == {
            "a": b"4", "b": None, "c": b"5", "d": b"6",
        }  # fmt: skip
        producer.send(b"", partition_key="c")
        producer.send(b"", partition_key="d")
        producer.send(b"", partition_key="a")
        self.compact(broker, topic)
        assert [key for key, value in self.read_compacted(client, topic) if value] == []
        # Not earlier: closing a consumer while messages arrive may crash the whole process.
        view.close()

    def test_shared_consumers_may_not_read_compacted(self, client: pulsar.Client, topic: str):
        with pytest.raises((pulsar.NotAllowedError, pulsar.PulsarException)):
            client.subscribe(
                topic, "s", consumer_type=pulsar.ConsumerType.Shared, is_read_compacted=True
            )
