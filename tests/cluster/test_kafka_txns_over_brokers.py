"""Transactions of Kafka's clients over the brokers of the producer, the leader and the group."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError as ClientError
from kafka_cluster import KafkaCluster, partition
from kafka_txns import NONE, Producer, read
from test_kafka_groups_over_brokers import committed
from txn_cluster import TxnBroker

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.slow
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(0)
    yield cluster
    cluster.close()


class Places:
    """Broker one has the producer, broker two leads `topic` and coordinates `group`."""

    def __init__(self, cluster: KafkaCluster, version: int = 1) -> None:
        self.cluster = cluster
        self.one, self.two = cluster.two()
        cluster.create(self.one, "orders")
        self.name = cluster.group_on(self.one, "producer")
        self.topic, self.group = cluster.topic_on(self.two), cluster.group_on(self.two)
        self.producer = Producer(cluster, self.one, self.name, version).inited()

    def write(self, value: bytes, leader: TxnBroker | None = None) -> None:
        if self.producer.version == 1:
            assert self.producer.add(self.topic) == NONE
        assert self.producer.publish(leader or self.two, self.topic, value) == NONE

    def commit_offset(self, offset: int, coordinator: TxnBroker | None = None) -> None:
        if self.producer.version == 1:
            assert self.producer.add_group(self.group) == NONE
        found = self.producer.commit_offset(coordinator or self.two, self.group, offset)
        assert found == NONE

    def read(self, leader: TxnBroker | None = None) -> list[bytes]:
        return read(self.cluster, leader or self.two, self.topic)

    def offset(self, coordinator: TxnBroker | None = None) -> tuple[ErrorCode, int]:
        return committed(self.cluster, coordinator or self.two, self.group)

    def settled(self, broker: TxnBroker, commit: bool = True) -> ErrorCode:
        self.producer.at = broker
        found: ErrorCode = self.cluster.settled(broker, lambda: self.producer.end(commit))
        return found


@pytest.mark.parametrize("version", [1, 2])
def test_records_and_offsets_commit_or_abort_together(cluster: KafkaCluster, version: int) -> None:
    places = Places(cluster, version)
    places.write(b"aborted")
    places.commit_offset(5)
    assert (places.read(), places.offset()) == ([], (UNSTABLE, -1))
    assert places.producer.end(commit=False) == NONE
    assert (places.read(), places.offset()) == ([], (NONE, -1))
    for number in range(3):
        places.write(b"%d" % number)
        places.write(b"more")
        places.commit_offset(number)
        assert places.offset() == (UNSTABLE, -1)
        assert places.producer.end() == NONE
        assert places.offset() == (NONE, number)
    assert places.read() == [b"0", b"more", b"1", b"more", b"2", b"more"]


def test_only_the_first_batch_of_a_transaction_asks_the_producers_broker(
    cluster: KafkaCluster,
) -> None:
    places = Places(cluster)
    peers, asked = places.two.transactions.peers, list[Any]()
    request = peers.request

    async def watched(broker: Any, body: Any) -> Any:
        if isinstance(body, pb.CommandKafkaTransaction):
            asked.append(body.topic)
        return await request(broker, body)

    peers.request = watched  # type: ignore[method-assign]
    for _ in range(2):
        for number in range(3):
            places.write(b"%d" % number)
        assert places.producer.end() == NONE
    assert asked == [str(partition(places.topic))] * 2


def test_what_was_not_added_is_refused(cluster: KafkaCluster) -> None:
    places = Places(cluster)
    wrong = ErrorCode.INVALID_TXN_STATE
    assert places.producer.publish(places.two, places.topic, b"x") == wrong
    assert places.producer.commit_offset(places.two, places.group, 1) == wrong
    places.write(b"a")
    assert places.producer.end() == NONE
    assert places.producer.publish(places.two, places.topic, b"late") == wrong
    assert places.read() == [b"a"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_newer_producer_fences_the_older_one_on_all_brokers(
    cluster: KafkaCluster, version: int
) -> None:
    places = Places(cluster, version)
    places.write(b"of the older one")
    newer = Producer(cluster, places.one, places.name, version).inited()
    assert places.producer.publish(places.two, places.topic, b"zombie") in FENCED
    assert places.producer.commit_offset(places.two, places.group, 1) in FENCED
    assert places.producer.end() in FENCED
    places.producer = newer
    places.write(b"of the newer one")
    assert newer.end() == NONE
    assert places.read() == [b"of the newer one"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_goes_on_where_its_producer_moves(
    cluster: KafkaCluster, version: int
) -> None:
    places = Places(cluster, version)
    places.write(b"a")
    cluster.move_group(places.one, places.two, places.name)
    assert places.producer.end() == ErrorCode.NOT_COORDINATOR
    places.producer.at = places.two
    assert (
        cluster.settled(
            places.two,
            lambda: places.producer.publish(places.two, places.topic, b"b"),
            ErrorCode.NOT_ENOUGH_REPLICAS,
        )
        == NONE
    )
    assert places.settled(places.two) == NONE
    assert places.read() == [b"a", b"b"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_outlives_the_broker_of_its_producer(
    cluster: KafkaCluster, version: int
) -> None:
    places = Places(cluster, version)
    places.write(b"a")
    places.commit_offset(7)
    cluster.crash(places.one)
    cluster.until(lambda: places.two.ownership.owns(topic_of_group(places.name)))
    assert places.settled(places.two) == NONE
    assert (places.read(), places.offset()) == ([b"a"], (NONE, 7))
    places.write(b"b")
    assert places.producer.end() == NONE
    assert places.read() == [b"a", b"b"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_outlives_the_leader_and_the_groups_coordinator(
    cluster: KafkaCluster, version: int
) -> None:
    places = Places(cluster, version)
    places.write(b"a")
    places.commit_offset(7)
    cluster.crash(places.two)
    cluster.until(lambda: places.one.ownership.owns(topic_of_group(places.group)))
    cluster.take(places.one, partition(places.topic))
    cluster.settled(places.one, lambda: places.offset(places.one))
    assert places.offset(places.one) == (UNSTABLE, -1)
    places.write(b"b", places.one)
    assert places.settled(places.one) == NONE
    assert places.read(places.one) == [b"a", b"b"]
    assert places.offset(places.one) == (NONE, 7)


def test_an_end_that_was_decided_is_told_by_the_next_broker(cluster: KafkaCluster) -> None:
    places = Places(cluster)
    places.write(b"a")
    places.commit_offset(7)
    lost = []

    async def told_nobody(broker: Any, body: Any) -> Any:
        lost.append(body)
        await asyncio.sleep(3600)

    places.one.transactions.peers.request = told_nobody  # type: ignore[method-assign]

    async def end() -> None:
        body = {**places.producer.named.fields, "committed": True}
        await (await cluster.connection(places.one)).ask(26, 3, body)

    cluster.start_task(end())
    cluster.until(lambda: len(lost) >= 2)  # the topic's broker and the group's
    assert (places.read(), places.offset()) == ([], (UNSTABLE, -1))
    cluster.crash(places.one)
    cluster.until(lambda: places.two.ownership.owns(topic_of_group(places.name)))
    assert places.settled(places.two) == NONE  # the client repeats it
    assert (places.read(), places.offset()) == ([b"a"], (NONE, 7))


def test_a_transaction_whose_topic_and_group_move_is_not_torn(cluster: KafkaCluster) -> None:
    places = Places(cluster, 2)
    places.write(b"a")
    places.commit_offset(1)
    cluster.hand_over(places.two, places.one, partition(places.topic))
    if places.two.ownership.owns(topic_of_group(places.group)):
        cluster.move_group(places.two, places.one, places.group)
    assert places.producer.publish(places.two, places.topic, b"b") in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    places.write(b"b", places.one)
    assert places.offset(places.one) == (UNSTABLE, -1)
    assert places.producer.end() == NONE
    assert places.read(places.one) == [b"a", b"b"]
    assert places.offset(places.one) == (NONE, 1)


def test_few_coordinators_are_refused_with_the_command_that_helps() -> None:
    cluster = KafkaCluster(0, transaction_coordinators=4)
    try:
        one = cluster.with_kafka("one")
        assert Producer(cluster, one, "p").init() == ErrorCode.POLICY_VIOLATION
    finally:
        cluster.close()


@pytest.mark.parametrize("victim", ["one", "two"])
def test_a_pipeline_copies_exactly_once_while_a_broker_dies(
    cluster: KafkaCluster, victim: str
) -> None:
    one, two = cluster.two()
    for topic in ("input", "output"):
        cluster.create(one, topic, 4)
    servers = [f"127.0.0.1:{each.kafka_port}" for each in (one, two)]
    copied: list[bytes] = []

    async def fill() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
        await producer.start()
        for number in range(80):
            await producer.send_and_wait("input", b"%d" % number, partition=number % 4)
        await producer.stop()

    async def copy() -> None:
        while len(copied) < 80:
            consumer = AIOKafkaConsumer(
                "input",
                bootstrap_servers=servers,
                group_id="copies",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
                max_poll_records=3,
            )
            producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="copier")
            try:
                await consumer.start()
                await producer.start()
                await copy_on(consumer, producer)
            except ClientError:
                await asyncio.sleep(0.5)  # as if the process began anew
            finally:
                await producer.stop()
                await consumer.stop()

    async def copy_on(consumer: Any, producer: Any) -> None:
        while len(copied) < 80:
            found = await consumer.getmany(timeout_ms=1000)
            offsets, values = {}, []
            async with producer.transaction():
                for place, records in found.items():
                    for record in records:
                        values.append(record.value)
                        await producer.send("output", record.value, partition=place.partition)
                    offsets[TopicPartition(*place)] = records[-1].offset + 1
                if offsets:
                    await producer.send_offsets_to_transaction(offsets, "copies")
            copied.extend(values)
            await asyncio.sleep(0.1)

    cluster.call(fill())
    copying = cluster.start_task(copy())
    cluster.until(lambda: len(copied) > 20 or copying.done())
    cluster.crash({"one": one, "two": two}[victim])
    cluster.until(copying.done)
    copying.result()

    async def result() -> list[int]:
        consumer = AIOKafkaConsumer(
            "output",
            bootstrap_servers=servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        found: list[int] = []
        while records := await consumer.getmany(timeout_ms=5000):
            found += [int(each.value) for some in records.values() for each in some]
        await consumer.stop()
        return sorted(found)

    assert cluster.call(result()) == list(range(80))
