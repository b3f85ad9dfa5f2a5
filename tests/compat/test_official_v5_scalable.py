"""Apache Pulsar's V5 SDK for Java, unmodified, on scalable topics, also while they are changed."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from official_v5 import V5Client, v5_gateway
from raw_client import RawClient

import pybroker.testing
from pybroker.client import Client
from pybroker.client.scalable import Checkpoint
from pybroker.testing import RunningBroker
from pybroker.wire.message_metadata import parse_metadata, payload_of
from pybroker.wire.single_messages import split_batch

pytestmark = pytest.mark.java

MESSAGES = 20
_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    with v5_gateway() as gateway:
        yield gateway


@pytest.fixture(scope="module")
def v5(gateway: Any, broker: RunningBroker) -> Iterator[V5Client]:
    client = V5Client(gateway, broker.service_url)
    yield client
    client.close()


class Scalable:
    """A scalable topic, changed over REST."""

    def __init__(self, broker: RunningBroker, segments: int) -> None:
        self.local = f"scalable-{next(_numbers)}"
        self.name = f"topic://public/default/{self.local}"
        self._url = f"{broker.admin_url}/admin/v2/scalable/public/default/{self.local}"
        self.ask("PUT", numInitialSegments=segments)

    def ask(self, method: str, path: str = "", **query: Any) -> Any:
        answer = httpx.request(method, f"{self._url}{path}", params=query, timeout=30)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    @property
    def segments(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET")["segments"]
        return found


@pytest.fixture(params=[1, 4], ids=["one segment", "four segments"])
def topic(request: pytest.FixtureRequest, broker: RunningBroker) -> Scalable:
    return Scalable(broker, request.param)


def publish(v5: V5Client, topic: str, prefix: str = "") -> list[str]:
    """Publishes messages with keys; returns their values, sorted."""
    values = [f"{prefix}{number:02}" for number in range(MESSAGES)]
    producer = v5.producer(topic)
    for number, value in enumerate(values):
        producer.newMessage().key(f"key {number}").value(value).send()
    producer.close()
    return values


def test_a_queue_consumer_gets_and_acknowledges_what_a_producer_sends(
    v5: V5Client, topic: Scalable
) -> None:
    queue = v5.queue(topic.name, "queue")
    values = publish(v5, topic.name)
    messages = [v5.receive(queue) for _ in values]
    assert sorted(message.value() for message in messages) == values
    for message in messages:
        queue.acknowledge(message.id())
    queue.close()
    assert v5.nothing(v5.queue(topic.name, "queue"))


def test_a_stream_consumer_acknowledges_all_segments_at_once(v5: V5Client, topic: Scalable) -> None:
    values = publish(v5, topic.name)
    stream = v5.stream(topic.name, "stream")
    messages = [v5.receive(stream) for _ in values]
    assert sorted(message.value() for message in messages) == values
    stream.acknowledgeCumulative(messages[-1].id())
    stream.close()
    later = publish(v5, topic.name, "later ")
    assert sorted(v5.values(v5.stream(topic.name, "stream"), MESSAGES)) == later


def test_a_checkpoint_restores_what_a_consumer_has_read(v5: V5Client, topic: Scalable) -> None:
    values = publish(v5, topic.name)
    consumer = v5.checkpoint(topic.name)
    read = v5.values(consumer, 5)
    checkpoint = bytes(consumer.checkpoint().toByteArray())
    consumer.close()
    restored = v5.checkpoint(topic.name, v5.checkpoint_of(checkpoint))
    read += v5.values(restored, MESSAGES - 5)
    assert sorted(read) == values and v5.nothing(restored)


def test_a_transaction_commits_messages_and_acknowledgements_together(
    v5: V5Client, topic: Scalable
) -> None:
    inputs, outputs = v5.queue(topic.name, "worker"), v5.queue(f"{topic.name}-out", "auditor")
    v5.producer(topic.name).newMessage().value("order").send()
    producer = v5.producer(f"{topic.name}-out")
    order = v5.receive(inputs)
    txn = v5.client.newTransaction()
    inputs.acknowledge(order.id(), txn)
    producer.newMessage().value("invoice").transaction(txn).send()
    assert v5.nothing(outputs)
    txn.commit()
    assert v5.values(outputs, 1) == ["invoice"]
    inputs.close()
    assert v5.nothing(v5.queue(topic.name, "worker"))


def test_an_aborted_transaction_shows_nothing_and_gives_its_input_back(
    v5: V5Client, topic: Scalable
) -> None:
    inputs, outputs = v5.queue(topic.name, "worker"), v5.queue(f"{topic.name}-out", "auditor")
    v5.producer(topic.name).newMessage().value("order").send()
    order = v5.receive(inputs)
    txn = v5.client.newTransaction()
    inputs.acknowledge(order.id(), txn)
    v5.producer(f"{topic.name}-out").newMessage().value("invoice").transaction(txn).send()
    txn.abort()
    assert v5.values(inputs, 1) == ["order"] and v5.nothing(outputs)


def test_a_producer_goes_on_while_its_segments_are_split_and_merged(
    v5: V5Client, broker: RunningBroker
) -> None:
    topic = Scalable(broker, 1)
    stream, producer = v5.stream(topic.name, "stream"), v5.producer(topic.name)
    sent = 0

    def send() -> None:
        nonlocal sent
        for _ in range(MESSAGES):
            producer.newMessage().key(f"key {sent % 7}").value(f"{sent:03}").send()
            sent += 1

    send()
    topic.ask("POST", "/split/0")
    send()
    topic.ask("POST", "/merge/1/2")
    send()
    messages = []
    for _ in range(sent):
        messages.append(v5.receive(stream))
        stream.acknowledgeCumulative(messages[-1].id())
    by_key: dict[str, list[str]] = {}
    for message in messages:
        by_key.setdefault(message.key().get(), []).append(message.value())
    assert sum(map(len, by_key.values())) == sent
    assert all(values == sorted(values) for values in by_key.values()), by_key
    stream.close()
    producer.close()


def test_stream_consumers_share_one_segment_by_its_entry_buckets(
    v5: V5Client, broker: RunningBroker
) -> None:
    topic = Scalable(broker, 1)
    alone = v5.stream(topic.name, "shared")
    values = publish(v5, topic.name, "a ")
    first = [v5.receive(alone) for _ in values]
    assert [message.value() for message in first] == values
    alone.acknowledgeCumulative(first[-1].id())
    consumers = [alone, v5.stream(topic.name, "shared")]
    values = publish(v5, topic.name, "b ")
    read: list[list[str]] = [[], []]
    for turn in range(200):
        if sum(map(len, read)) == MESSAGES:
            break
        consumer, own = consumers[turn % 2], read[turn % 2]
        if (message := v5.receive(consumer, 0.3)) is not None:
            own.append(message.value())
            consumer.acknowledgeCumulative(message.id())
    assert sorted(read[0] + read[1]) == values and all(read), "both have a part of the keys"
    stats = topic.ask("GET", "/stats")
    assert stats["layout"]["segments"]["0"]["entryBuckets"] == 4
    topic.ask("POST", "/rebucket/0", bucketCount=8)
    values = publish(v5, topic.name, "c ")
    consumers[1].close()
    # The SDK reads a segment alone only once what it received of its own part is acknowledged.
    found = []
    for _ in values:
        message = v5.receive(alone)
        found.append(message.value())
        alone.acknowledgeCumulative(message.id())
    assert sorted(found) == values
    metrics = httpx.get(f"{broker.admin_url}/metrics").text
    assert "entry_bucket_violation_total{" not in metrics, "all entries are within one bucket"
    alone.close()


def firsts(v5: V5Client, consumer: Any, count: int, acknowledge: Any) -> list[str]:
    """So many different values, in the order in which they came first: a migration closes
    connections of stream consumers, so what is not acknowledged may come again.
    """
    found: dict[str, None] = {}
    while len(found) < count:
        message = v5.receive(consumer)
        assert message is not None, list(found)
        found.setdefault(message.value())
        acknowledge(message.id())
    return list(found)


def test_everybody_goes_on_when_the_ordinary_topic_is_made_scalable(
    v5: V5Client, broker: RunningBroker
) -> None:
    local = f"shop-{next(_numbers)}"
    rest, name = f"{broker.admin_url}/admin/v2", f"persistent://public/default/{local}"
    made = httpx.put(f"{rest}/persistent/public/default/{local}/partitions", json=2)
    assert made.is_success
    queue, stream = v5.queue(name, "queue"), v5.stream(name, "stream")
    v5.queue(name, "away").close()
    producer = v5.producer(name)
    txn = v5.client.newTransaction()
    sent: list[str] = []

    def send() -> None:
        for number in range(MESSAGES):
            sent.append(f"{len(sent):03}")
            producer.newMessage().key(f"key {number % 7}").value(sent[-1]).send()

    send()
    producer.newMessage().key("key 0").value("in a transaction").transaction(txn).send()
    migrated = httpx.post(f"{rest}/scalable/public/default/{local}/migrate", timeout=30)
    assert migrated.is_success, migrated.text
    send()
    txn.commit()
    everything = {*sent, "in a transaction"}
    assert (
        set(firsts(v5, queue, len(everything), lambda each: queue.acknowledge(each))) == everything
    )
    found = firsts(v5, stream, len(everything), lambda each: stream.acknowledgeCumulative(each))
    assert set(found) == everything
    for key in range(7):
        own = [value for value in found if value.isdigit() and int(value) % MESSAGES % 7 == key]
        assert own == sorted(own), "in the order of the key"
    away = v5.queue(f"topic://public/default/{local}", "away")
    assert set(v5.values(away, len(everything))) == everything
    for each in (queue, stream, producer, away):
        each.close()


def test_a_queue_consumer_that_is_away_during_a_split_gets_everything(
    v5: V5Client, broker: RunningBroker
) -> None:
    topic = Scalable(broker, 1)
    v5.queue(topic.name, "away").close()
    topic.ask("POST", "/split/0")
    values = publish(v5, topic.name)
    assert sorted(v5.values(v5.queue(topic.name, "away"), MESSAGES)) == values


def test_a_transaction_commits_what_it_wrote_before_and_after_a_split(
    v5: V5Client, broker: RunningBroker
) -> None:
    topic = Scalable(broker, 1)
    stream, producer = v5.stream(topic.name, "stream"), v5.producer(topic.name)
    txn = v5.client.newTransaction()
    producer.newMessage().key("k").value("1 before").transaction(txn).send()
    topic.ask("POST", "/split/0")
    producer.newMessage().key("k").value("2 after").transaction(txn).send()
    producer.newMessage().key("k").value("3 plain").send()
    assert v5.nothing(stream), "the parent is not drained while the transaction is open"
    txn.commit()
    read = []
    for _ in range(3):
        message = v5.receive(stream)
        read.append(message.value())
        stream.acknowledgeCumulative(message.id())
    assert read == ["1 before", "2 after", "3 plain"]


def test_two_stream_consumers_share_the_segments_and_keep_the_order_over_a_split(
    v5: V5Client, broker: RunningBroker
) -> None:
    topic = Scalable(broker, 2)
    consumers = [v5.stream(topic.name, "stream", consumerName=name) for name in ("a", "b")]
    publish(v5, topic.name, "before ")
    topic.ask("POST", "/split/0")
    topic.ask("POST", "/split/1")
    publish(v5, topic.name, "later ")
    by_key: dict[str, list[str]] = {}
    left, idle = 2 * MESSAGES, 0
    while left and idle < 60:
        for consumer in consumers:
            if (message := v5.receive(consumer, 0.5)) is None:
                idle += 1
                continue
            by_key.setdefault(message.key().get(), []).append(message.value())
            consumer.acknowledgeCumulative(message.id())
            left -= 1
    assert left == 0
    assert all(values == sorted(values) for values in by_key.values()), by_key
    for consumer in consumers:
        consumer.close()


def test_everything_is_there_after_a_restart(gateway: Any, tmp_path: Any) -> None:
    with pybroker.testing.broker(data_dir=tmp_path, http=True) as broker:
        topic, client = Scalable(broker, 1), V5Client(gateway, broker.service_url)
        client.queue(topic.name, "queue").close()
        before = publish(client, topic.name, "before ")
        topic.ask("POST", "/split/0")
        after = publish(client, topic.name, "later ")
        client.close()
    with pybroker.testing.broker(data_dir=tmp_path, http=True) as broker:
        client = V5Client(gateway, broker.service_url)
        found = client.values(client.queue(topic.name, "queue"), 2 * MESSAGES)
        assert sorted(found) == before + after
        assert sorted(client.values(client.checkpoint(topic.name), 2 * MESSAGES)) == before + after
        client.close()


def test_a_dead_letter_topic_is_a_scalable_one(v5: V5Client, broker: RunningBroker) -> None:
    topic = Scalable(broker, 1)
    policy = v5.api.config.DeadLetterPolicy.builder().maxRedeliverCount(1).build()
    soon = v5.api.config.BackoffPolicy.exponential(v5.seconds(0.1), v5.seconds(1))
    settings = {"deadLetterPolicy": policy, "negativeAckRedeliveryBackoff": soon}
    queue = v5.queue(topic.name, "worker", **settings)
    v5.producer(topic.name).newMessage().value("bad").send()
    dead = v5.queue(f"{topic.name}-DLQ", "undertaker")
    for _ in range(2):
        queue.negativeAcknowledge(v5.receive(queue).id())
    assert v5.nothing(queue)
    assert v5.values(dead, 1) == ["bad"]


def test_the_python_client_sends_a_key_where_the_sdk_sends_it(
    v5: V5Client, broker: RunningBroker
) -> None:
    topic = Scalable(broker, 16)
    publish(v5, topic.name)
    segments: dict[str, set[str]] = {}
    with Client(broker.service_url) as client:
        producer = client.create_producer(topic.name)
        for number in range(MESSAGES):
            producer.send(b"p", partition_key=f"key {number}")
        reader = client.create_checkpoint_consumer(topic.name, Checkpoint.earliest)
        for _ in range(2 * MESSAGES):
            message = reader.receive(timeout_millis=30_000)
            segments.setdefault(message.partition_key(), set()).add(message.topic_name())
    assert len(segments) == MESSAGES
    assert all(len(each) == 1 for each in segments.values()), segments
    assert {len(each) for each in stamps(broker, segments).values()} == {1}, "the same buckets"


def stamps(broker: RunningBroker, segments: dict[str, set[str]]) -> dict[str, set[int]]:
    """By key; `segments` are those of each key, whose messages are two entries."""
    found: dict[str, set[int]] = {}
    with RawClient(broker.service_url) as raw:
        for number, name in enumerate(sorted(set().union(*segments.values()))):
            raw.subscribe(name, number, subscription="stamps")
            raw.flow(1000, number)
            for _ in range(2 * sum(name in each for each in segments.values())):
                raw.messages(1)
                metadata = parse_metadata(raw.entry)
                key = metadata.partition_key or key_of_one(raw.entry)
                found.setdefault(key, set()).add(metadata.entry_hash_min)
                assert metadata.entry_hash_min == metadata.entry_hash_max
    return found


def key_of_one(entry: bytes) -> str:
    """Of a batch of one message."""
    ((single, _),) = split_batch(payload_of(entry), 1)
    return str(single.partition_key)


def test_checkpoints_go_from_python_to_java_and_back(
    v5: V5Client, broker: RunningBroker, topic: Scalable
) -> None:
    values = publish(v5, topic.name)
    with Client(broker.service_url) as client:
        python = client.create_checkpoint_consumer(topic.name, Checkpoint.earliest)
        read = [python.receive(timeout_millis=30_000).data().decode() for _ in range(5)]
        java = v5.checkpoint(topic.name, v5.checkpoint_of(python.checkpoint().serialize()))
        read += v5.values(java, 5)
        start = Checkpoint.deserialize(bytes(java.checkpoint().toByteArray()))
        rest = client.create_checkpoint_consumer(topic.name, start)
        read += [rest.receive(timeout_millis=30_000).data().decode() for _ in range(MESSAGES - 10)]
        java.close()
    assert sorted(read) == values
