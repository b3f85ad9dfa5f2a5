"""Apache Pulsar's V5 SDK for Java, unmodified, on ordinary topics: plain and partitioned ones."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from credentials import token
from official_java import OfficialClient
from official_v5 import V5Client, v5_gateway
from permission_world import World
from py4j.protocol import Py4JJavaError

import pybroker.testing
from pybroker.testing import RunningBroker
from pybroker.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.java

MESSAGES = 12
POLICIES = "org.apache.pulsar.common.policies.data.RetentionPolicies"  # any record of Java's
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


def set_partitions(broker: RunningBroker, topic: str, partitions: int, method: str) -> None:
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    httpx.request(method, url, json=partitions).raise_for_status()


@pytest.fixture(params=[0, 4], ids=["plain", "partitioned"])
def topic(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    topic = f"persistent://public/default/v5-{next(_numbers)}"
    if request.param:
        set_partitions(broker, topic, request.param, "PUT")
    return topic


def publish(v5: V5Client, topic: str, prefix: str = "") -> list[str]:
    """Publishes messages with keys; returns their values, sorted."""
    values = [f"{prefix}{number:02}" for number in range(MESSAGES)]
    producer = v5.producer(topic)
    for number, value in enumerate(values):
        producer.newMessage().key(f"key {number}").value(value).send()
    producer.close()
    return values


@pytest.mark.feature("shared", "keys and properties", "partitioned topics")
def test_a_queue_consumer_gets_and_acknowledges_what_a_producer_sends(
    v5: V5Client, topic: str
) -> None:
    queue = v5.queue(topic, "queue")
    values = publish(v5, topic)
    messages = [v5.receive(queue) for _ in values]
    assert sorted(message.value() for message in messages) == values
    assert {message.key().get() for message in messages} == {f"key {n}" for n in range(MESSAGES)}
    for message in messages:
        queue.acknowledge(message.id())
    queue.close()
    assert v5.nothing(v5.queue(topic, "queue"))


@pytest.mark.feature("exclusive", "cumulative acknowledgement")
def test_a_stream_consumer_acknowledges_all_segments_at_once(v5: V5Client, topic: str) -> None:
    values = publish(v5, topic)
    stream = v5.stream(topic, "stream")
    messages = [v5.receive(stream) for _ in values]
    assert sorted(message.value() for message in messages) == values
    stream.acknowledgeCumulative(messages[-1].id())
    stream.close()
    later = publish(v5, topic, "later ")
    assert sorted(v5.values(v5.stream(topic, "stream"), MESSAGES)) == later


@pytest.mark.feature("readers")
def test_a_checkpoint_restores_what_a_consumer_has_read(v5: V5Client, topic: str) -> None:
    values = publish(v5, topic)
    consumer = v5.checkpoint(topic)
    read = v5.values(consumer, 5)
    checkpoint = bytes(consumer.checkpoint().toByteArray())
    consumer.close()
    restored = v5.checkpoint(topic, v5.checkpoint_of(checkpoint))
    read += v5.values(restored, MESSAGES - 5)
    assert sorted(read) == values and v5.nothing(restored)


def test_a_checkpoint_group_reads_each_segment_once(v5: V5Client, topic: str) -> None:
    values = publish(v5, topic)
    consumer = v5.checkpoint(topic, consumerGroup="group")
    assert sorted(v5.values(consumer, MESSAGES)) == values
    consumer.close()


@pytest.mark.feature("transactions")
def test_a_transaction_commits_messages_and_acknowledgements_together(
    v5: V5Client, topic: str
) -> None:
    inputs, outputs = v5.queue(topic, "worker"), v5.queue(f"{topic}-out", "auditor")
    v5.producer(topic).newMessage().value("order").send()
    producer = v5.producer(f"{topic}-out")
    order = v5.receive(inputs)
    txn = v5.client.newTransaction()
    inputs.acknowledge(order.id(), txn)
    producer.newMessage().value("invoice").transaction(txn).send()
    assert v5.nothing(outputs)
    txn.commit()
    assert v5.values(outputs, 1) == ["invoice"]
    inputs.close()
    assert v5.nothing(v5.queue(topic, "worker"))


@pytest.mark.feature("transactions")
def test_an_aborted_transaction_shows_nothing_and_gives_its_input_back(
    v5: V5Client, topic: str
) -> None:
    inputs, outputs = v5.queue(topic, "worker"), v5.queue(f"{topic}-out", "auditor")
    v5.producer(topic).newMessage().value("order").send()
    order = v5.receive(inputs)
    txn = v5.client.newTransaction()
    inputs.acknowledge(order.id(), txn)
    v5.producer(f"{topic}-out").newMessage().value("invoice").transaction(txn).send()
    txn.abort()
    assert v5.values(inputs, 1) == ["order"] and v5.nothing(outputs)


@pytest.mark.feature("transactions", "cumulative acknowledgement")
def test_a_stream_consumer_acknowledges_in_a_transaction(v5: V5Client, topic: str) -> None:
    values = publish(v5, topic)
    stream = v5.stream(topic, "stream")
    messages = [v5.receive(stream) for _ in values]
    txn = v5.client.newTransaction()
    stream.acknowledgeCumulative(messages[-1].id(), txn)
    txn.commit()
    stream.close()
    assert v5.nothing(v5.stream(topic, "stream"))


@pytest.mark.feature("JSON schema")
def test_a_json_schema_is_stored_and_its_records_arrive(
    gateway: Any, v5: V5Client, topic: str
) -> None:
    schema = v5.schemas.json(gateway.jvm.java.lang.Class.forName(POLICIES))
    queue = v5.queue(topic, "queue", schema)
    record = gateway.jvm.org.apache.pulsar.common.policies.data.RetentionPolicies(7, 8)
    v5.producer(topic, schema).newMessage().value(record).send()
    assert v5.receive(queue).value().equals(record)


def test_a_4x_client_on_the_same_topic_notices_nothing(
    gateway: Any, broker: RunningBroker, v5: V5Client, topic: str
) -> None:
    """Both read what both write."""
    official = OfficialClient(gateway, broker.service_url)
    queue = v5.queue(topic, "queue")
    consumer = official.consumer(topic, "4.x", "Shared")
    values = publish(v5, topic)
    official.producer(topic).send(b"from 4.x")
    assert sorted(v5.values(queue, MESSAGES + 1)) == [*values, "from 4.x"]
    received = sorted(official.take(consumer, MESSAGES + 1))
    assert received == [*(value.encode() for value in values), b"from 4.x"]
    official.shutdown()


def test_a_v5_and_a_4x_transaction_are_open_at_once_and_never_meet(
    gateway: Any, broker: RunningBroker, v5: V5Client, topic: str
) -> None:
    official = OfficialClient(gateway, broker.service_url)
    queue, producer = v5.queue(topic, "queue"), v5.producer(topic)
    classic = official.producer(topic)
    for commits in range(4):
        txn, other = v5.client.newTransaction(), official.transaction()
        producer.newMessage().value(f"v5 {commits}").transaction(txn).send()
        classic.newMessage(other).value(b"4.x").send()
        other.abort().get()
        txn.commit()
        message = v5.receive(queue)
        assert message.value() == f"v5 {commits}"
        queue.acknowledge(message.id())
    assert v5.nothing(queue)
    official.shutdown()


@pytest.mark.feature("partitioned topics")
def test_added_partitions_reach_consumers_and_producers_at_work(
    broker: RunningBroker, v5: V5Client
) -> None:
    topic = f"persistent://public/default/v5-{next(_numbers)}"
    set_partitions(broker, topic, 1, "PUT")
    queue, stream, reader = v5.queue(topic, "queue"), v5.stream(topic, "s"), v5.checkpoint(topic)
    values = publish(v5, topic)
    for consumer in (queue, stream, reader):
        assert sorted(v5.values(consumer, MESSAGES)) == values
    set_partitions(broker, topic, 3, "POST")
    later = publish(v5, topic, "later ")
    for consumer in (queue, stream, reader):
        assert sorted(v5.values(consumer, MESSAGES)) == later


def test_stream_consumers_divide_the_segments_and_take_over_those_of_a_leaver(
    broker: RunningBroker, v5: V5Client
) -> None:
    topic = f"persistent://public/default/v5-{next(_numbers)}"
    set_partitions(broker, topic, 4, "PUT")
    one = v5.stream(topic, "s", consumerName="one")
    other = v5.stream(topic, "s", consumerName="other")
    values = publish(v5, topic)
    received: list[str] = []
    both = 0
    while len(set(received)) < MESSAGES:
        for consumer in (one, other):
            if (message := v5.receive(consumer, 0.5)) is not None:
                received.append(message.value())
                consumer.acknowledgeCumulative(message.id())
                both |= 1 if consumer is one else 2
    assert sorted(set(received)) == values and both == 3
    other.close()
    later = publish(v5, topic, "later ")
    assert sorted(v5.values(one, MESSAGES)) == later


@pytest.mark.feature("broker restarts", "transactions")
@pytest.mark.parametrize("order", ["logOrder", "commitOrder"])
def test_an_open_transaction_and_all_consumers_go_on_after_the_broker_was_killed(
    gateway: Any, tmp_path: Path, order: str
) -> None:
    config, topic = tmp_path / "ordered.conf", "persistent://public/default/orders"
    config.write_text(f"transactionBuffer={order}")
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        v5 = V5Client(gateway, broker.service_url)
        consumers = [v5.queue(topic, "q"), v5.stream(topic, "s"), v5.checkpoint(topic)]
        producer = v5.producer(topic)
        txn = v5.client.newTransaction()
        producer.newMessage().value("before").transaction(txn).send()
        broker.kill()
        broker.start()
        producer.newMessage().value("after").transaction(txn).send()
        txn.commit()
        for consumer in consumers:
            assert v5.values(consumer, 2) == ["before", "after"]
        v5.close()


@pytest.mark.feature("login by token")
def test_a_role_uses_what_it_may_use_and_hears_what_it_may_not(gateway: Any, world: World) -> None:
    world.grant("alice", "produce", "consume")
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    login = plugin, f"token:{token('alice')}"
    alice = V5Client(gateway, world.broker.service_url, authentication=login)
    consumers = [alice.queue(world.topic, "q"), alice.stream(world.topic, "s")]
    txn = alice.client.newTransaction()
    alice.producer(world.topic).newMessage().value("hers").transaction(txn).send()
    txn.commit()
    for consumer in consumers:
        assert alice.values(consumer, 1) == ["hers"]
    with pytest.raises(Py4JJavaError) as refused:
        alice.producer("persistent://public/default/others")
    assert "not authorized" in refused.value.java_exception.toString()
    alice.close()
