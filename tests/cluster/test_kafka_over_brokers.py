"""Kafka's clients in a cluster: who leads a partition, and what a move or a crash leaves of it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka_batches import split_batches
from kafka_cluster import KafkaCluster, partition
from kafka_produce import FETCH, INIT_PRODUCER_ID, batch, fetch_body, sequenced
from rest import Rest
from txn_cluster import TxnBroker

from pybroker.kafka import shared_nodes
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import header_of
from pybroker.kafka.shared_nodes import node_numbers

pytestmark = pytest.mark.slow
DELETE_TOPICS, CREATE_PARTITIONS = 20, 37
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(0)
    yield cluster
    cluster.close()


def leaders(metadata: Any) -> list[int]:
    return [each["leader_id"] for each in metadata["topics"][0]["partitions"]]


def offsets(cluster: KafkaCluster, broker: TxnBroker, topic: str) -> list[int]:
    records = cluster.fetch(broker, topic, 0)["records"]
    return [header_of(each).base_offset for each in split_batches(records)]


def test_all_brokers_tell_the_same_leaders(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders", 8)
    told = [cluster.metadata(each, "orders") for each in (one, two)]
    assert leaders(told[0]) == leaders(told[1])
    assert {each["port"] for each in told[0]["brokers"]} == {one.kafka_port, two.kafka_port}
    assert told[0]["brokers"] == told[1]["brokers"]
    assert set(leaders(told[0])) == {each["node_id"] for each in told[0]["brokers"]}


def test_a_broker_that_does_not_lead_refuses(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    topic = cluster.topic_on(one)
    assert cluster.produce(two, topic, batch(b"a")) == (NOT_LEADER, -1)
    assert cluster.fetch(two, topic, 0)["error_code"] == NOT_LEADER
    assert cluster.produce(one, topic, batch(b"a")) == (ErrorCode.NONE, 0)


def test_unchanged_clients_find_the_leaders(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders", 8)

    async def through_both() -> list[int]:
        servers = f"127.0.0.1:{one.kafka_port}", f"127.0.0.1:{two.kafka_port}"
        producer = AIOKafkaProducer(bootstrap_servers=servers[0], enable_idempotence=True)
        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=servers[1], auto_offset_reset="earliest"
        )
        await producer.start()
        for number in range(16):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 8)
        await producer.stop()
        await consumer.start()
        found = [int((await consumer.getone()).value) for _ in range(16)]
        await consumer.stop()
        return sorted(found)

    assert cluster.call(through_both()) == list(range(16))
    assert all(each.ownership.owned() for each in (one, two))


def test_offsets_and_producers_go_on_at_the_next_owner(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    topic = cluster.topic_on(one)
    assert cluster.produce(one, topic, sequenced(0, b"a", b"b")) == (ErrorCode.NONE, 0)
    cluster.hand_over(one, two, partition(topic))
    assert cluster.produce(one, topic, sequenced(2, b"c")) == (NOT_LEADER, -1)
    assert cluster.produce(two, topic, sequenced(0, b"a", b"b")) == (ErrorCode.NONE, 0)  # a copy
    assert cluster.produce(two, topic, sequenced(2, b"c")) == (ErrorCode.NONE, 2)
    cluster.hand_over(two, one, partition(topic))
    assert cluster.produce(one, topic, sequenced(2, b"c")) == (ErrorCode.NONE, 2)
    assert cluster.produce(one, topic, sequenced(3, b"d")) == (ErrorCode.NONE, 3)
    assert offsets(cluster, one, topic) == [0, 2, 3]


def test_what_was_acknowledged_outlives_its_broker(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    topic = cluster.topic_on(one)
    for number in range(5):
        sent = sequenced(2 * number, b"a", b"b")
        assert cluster.produce(one, topic, sent) == (ErrorCode.NONE, 2 * number)
    cluster.crash(one)
    cluster.world.sleep(15)
    cluster.take(two, partition(topic))
    assert cluster.produce(two, topic, sequenced(8, b"a", b"b")) == (ErrorCode.NONE, 8)  # a copy
    missing = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert cluster.produce(two, topic, sequenced(12, b"x")) == (missing, -1)
    assert cluster.produce(two, topic, sequenced(10, b"c")) == (ErrorCode.NONE, 10)
    assert offsets(cluster, two, topic) == [0, 2, 4, 6, 8, 10]
    (only,) = cluster.metadata(two)["brokers"]
    assert only["port"] == two.kafka_port


def test_a_fetch_that_waits_is_told_that_its_partition_moves(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    topic = cluster.topic_on(one)
    cluster.produce(one, topic, batch(b"a"))

    async def wait() -> Any:
        body = fetch_body(topic, 1, wait_ms=30_000)
        return await (await cluster.connection(one)).ask(FETCH, 12, body)

    waiting = cluster.start_task(wait())
    cluster.world.sleep(1)
    assert not waiting.done()
    cluster.hand_over(one, two, partition(topic))
    cluster.until(waiting.done)
    (found,) = waiting.result()["responses"][0]["partitions"]
    assert found["error_code"] == NOT_LEADER


def test_a_topic_that_another_broker_has_just_created_is_known(cluster: KafkaCluster) -> None:
    one, two = cluster.two()

    async def create_and_produce(number: int) -> Any:
        topic = f"new-{number}"
        await one.broker.topics.create_partitioned(partition(topic).partitioned_name, 1)
        return await (await cluster.connection(two)).ask(FETCH, 12, fetch_body(topic, 0))

    for number in range(5):
        found = cluster.world.call(one.node, create_and_produce(number))
        code = found["responses"][0]["partitions"][0]["error_code"]
        assert code in (ErrorCode.NONE, NOT_LEADER)


def test_a_broker_without_the_listener_leads_nothing_for_kafka(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    one, without = cluster.with_kafka("one"), cluster.start("without")
    for broker in (one, without):
        cluster.topic_of(broker)  # each has a bundle
    cluster.create(one, "orders", 16)
    told = cluster.metadata(one, "orders")
    (node,) = told["brokers"]
    found = {(e["error_code"], e["leader_id"]) for e in told["topics"][0]["partitions"]}
    assert found == {(ErrorCode.NONE, node["node_id"]), (ErrorCode.LISTENER_NOT_FOUND, -1)}
    assert "start it with --kafka" in caplog.text


def test_no_two_brokers_give_the_same_producer_id(cluster: KafkaCluster) -> None:
    def new_id(broker: TxnBroker) -> int:
        asked = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        answer = cluster.ask(broker, INIT_PRODUCER_ID, 4, asked)
        assert not answer["error_code"]
        return int(answer["producer_id"])

    brokers = cluster.two()
    ids = [new_id(brokers[number % 2]) for number in range(6)]
    assert len(set(ids)) == 6


def test_a_producer_goes_on_while_brokers_die_and_come(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders", 4)
    servers = [f"127.0.0.1:{each.kafka_port}" for each in (one, two)]
    sent: list[tuple[int, int, bytes]] = []

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
        await producer.start()
        for number in range(120):
            value = b"%d" % number
            receipt = await producer.send_and_wait("orders", value, partition=number % 4)
            sent.append((receipt.partition, receipt.offset, value))
            await asyncio.sleep(0.1)
        await producer.stop()

    sending = cluster.start_task(send())
    cluster.until(lambda: len(sent) > 20)
    cluster.crash(one)
    cluster.until(lambda: len(sent) > 60)
    three = cluster.with_kafka("three")
    cluster.until(lambda: len(sent) > 80)
    for bundle in two.ownership.owned():
        cluster.world.call(two.node, two.ownership.release(bundle, three.membership.broker_id))
    cluster.until(sending.done)
    sending.result()

    async def read() -> list[tuple[int, int, bytes]]:
        server = f"127.0.0.1:{three.kafka_port}"
        consumer = AIOKafkaConsumer(
            "orders", bootstrap_servers=server, auto_offset_reset="earliest"
        )
        await consumer.start()
        found = [await consumer.getone() for _ in range(120)]
        await consumer.stop()
        return [(each.partition, each.offset, each.value) for each in found]

    assert sorted(cluster.call(read())) == sorted(sent)


def test_numbers_of_nodes_are_stable_and_different(monkeypatch: pytest.MonkeyPatch) -> None:
    assert node_numbers(["b:1", "a:1"]) == node_numbers(["a:1", "b:1"])
    assert node_numbers(["a:1"])["a:1"] == node_numbers(["a:1", "b:1", "c:1"])["a:1"]
    monkeypatch.setattr(shared_nodes, "crc32", lambda _: 0x7FFFFFFF)
    assert node_numbers(["b:1", "a:1"]) == {"a:1": 0x7FFFFFFF, "b:1": 0}


def test_what_was_made_scalable_is_changed_through_none_of_them() -> None:
    """In the words of a broker that is alone."""
    cluster = KafkaCluster(0, serves_http=True)
    try:
        brokers = cluster.two()
        cluster.create(brokers[0], "orders", 4)
        Rest(cluster, brokers[0]).do("POST", "v2/scalable/public/default/orders/migrate")
        for broker in brokers:
            body: dict[str, Any] = {"topic_names": ["orders"], "timeout_ms": 30_000}
            (answer,) = cluster.ask(broker, DELETE_TOPICS, 5, body)["responses"]
            assert answer["error_code"] == ErrorCode.POLICY_VIOLATION, answer
            grown = {"name": "orders", "count": 10, "assignments": None}
            body = {"topics": [grown], "timeout_ms": 30_000, "validate_only": False}
            (result,) = cluster.ask(broker, CREATE_PARTITIONS, 3, body)["results"]
            assert result["error_code"] == ErrorCode.POLICY_VIOLATION, result
    finally:
        cluster.close()


def test_a_topic_on_several_brokers_grows_and_is_deleted_through_any_of_them() -> None:
    cluster = KafkaCluster(0, serves_http=True)
    try:
        one, two = cluster.two()
        cluster.create(one, "orders", 8)
        assert len(set(leaders(cluster.metadata(one, "orders")))) == 2
        grown = {"name": "orders", "count": 10, "assignments": None}
        body = {"topics": [grown], "timeout_ms": 30_000, "validate_only": False}
        (result,) = cluster.ask(two, CREATE_PARTITIONS, 3, body)["results"]
        assert not result["error_code"], result
        assert len(leaders(cluster.metadata(one, "orders"))) == 10
        for broker in (one, two):
            body = {"topic_names": ["orders"], "timeout_ms": 30_000}
            (answer,) = cluster.ask(broker, DELETE_TOPICS, 5, body)["responses"]
            known = ErrorCode.NONE if broker is one else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert answer["error_code"] == known, answer
    finally:
        cluster.close()
