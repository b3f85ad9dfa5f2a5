"""Kafka's groups in a cluster: who coordinates one, and what a move or a crash leaves of it."""

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka_cluster import KafkaCluster
from rest import Rest
from txn_cluster import TxnBroker

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.offsets.logs import topic_of_group

pytestmark = pytest.mark.slow
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP = 8, 9, 10, 11
HEARTBEAT, SYNC_GROUP, LIST_GROUPS, DELETE_TOPICS, GROUP_HEARTBEAT = 12, 14, 16, 20, 68
NONE, ELSEWHERE = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
PROTOCOL: Final = {"name": "range", "metadata": b"any"}


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(0)
    yield cluster
    cluster.close()


def commit(cluster: KafkaCluster, broker: TxnBroker, group: str, offset: int) -> ErrorCode:
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    body = {"group_id": group, "topics": [{"name": "orders", "partitions": [place]}]}
    body |= {"generation_id_or_member_epoch": -1, "member_id": ""}
    (topic,) = cluster.ask(broker, OFFSET_COMMIT, 8, body)["topics"]
    return ErrorCode(topic["partitions"][0]["error_code"])


def committed(cluster: KafkaCluster, broker: TxnBroker, group: str) -> tuple[ErrorCode, int]:
    asked = {"group_id": group, "topics": [{"name": "orders", "partition_indexes": [0]}]}
    body = {"groups": [asked], "require_stable": True}
    (found,) = cluster.ask(broker, OFFSET_FETCH, 8, body)["groups"]
    if found["error_code"]:
        return ErrorCode(found["error_code"]), -1
    (partition,) = found["topics"][0]["partitions"]
    return ErrorCode(partition["error_code"]), partition["committed_offset"]


def coordinator(cluster: KafkaCluster, broker: TxnBroker, group: str) -> int:
    body = {"key_type": 0, "coordinator_keys": [group]}
    (found,) = cluster.ask(broker, FIND_COORDINATOR, 4, body)["coordinators"]
    assert not found["error_code"], found
    return int(found["port"])


def joined(cluster: KafkaCluster, broker: TxnBroker, group: str) -> Any:
    body = {
        "group_id": group,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [PROTOCOL],
        "group_instance_id": "static",
    }
    return cluster.ask(broker, JOIN_GROUP, 7, body)


def synced(cluster: KafkaCluster, broker: TxnBroker, group: str, member: Any) -> Any:
    body = {
        "group_id": group,
        "generation_id": member["generation_id"],
        "member_id": member["member_id"],
        "group_instance_id": "static",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member["member_id"], "assignment": b"all"}],
    }
    return cluster.ask(broker, SYNC_GROUP, 5, body)


def heartbeat(cluster: KafkaCluster, broker: TxnBroker, group: str, member: Any) -> ErrorCode:
    body = {
        "group_id": group,
        "generation_id": member["generation_id"],
        "member_id": member["member_id"],
        "group_instance_id": "static",
    }
    return ErrorCode(cluster.ask(broker, HEARTBEAT, 4, body)["error_code"])


def listed(cluster: KafkaCluster, broker: TxnBroker) -> set[str]:
    body = {"states_filter": [], "types_filter": []}
    return {each["group_id"] for each in cluster.ask(broker, LIST_GROUPS, 5, body)["groups"]}


def test_one_broker_coordinates_a_group_and_all_name_it(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders")
    group = cluster.group_on(two)
    assert {coordinator(cluster, each, group) for each in (one, two)} == {two.kafka_port}
    assert commit(cluster, one, group, 1) == ELSEWHERE
    assert committed(cluster, one, group) == (ELSEWHERE, -1)
    assert joined(cluster, one, group)["error_code"] == ELSEWHERE
    assert commit(cluster, two, group, 1) == NONE
    assert (listed(cluster, one), listed(cluster, two)) == (set(), {group})


def test_offsets_move_with_their_group(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders")
    group = cluster.group_on(one)
    assert commit(cluster, one, group, 1) == NONE
    cluster.move_group(one, two, group)
    assert committed(cluster, one, group) == (ELSEWHERE, -1)
    assert committed(cluster, two, group) == (NONE, 1)
    assert commit(cluster, two, group, 2) == NONE
    cluster.move_group(two, one, group)
    assert committed(cluster, one, group) == (NONE, 2)


def test_committed_offsets_outlive_their_broker(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders")
    group = cluster.group_on(one)
    for offset in range(5):
        assert commit(cluster, one, group, offset) == NONE
    cluster.crash(one)
    cluster.until(lambda: two.ownership.owns(topic_of_group(group)))  # nobody asks for it
    assert listed(cluster, two) == {group}
    assert coordinator(cluster, two, group) == two.kafka_port
    assert committed(cluster, two, group) == (NONE, 4)


def test_a_generation_goes_on_at_the_next_coordinator(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    group = cluster.group_on(one)
    member = joined(cluster, one, group)
    assert synced(cluster, one, group, member)["assignment"] == b"all"
    assert heartbeat(cluster, one, group, member) == NONE
    cluster.move_group(one, two, group)
    assert heartbeat(cluster, one, group, member) == ELSEWHERE
    assert heartbeat(cluster, two, group, member) == NONE
    assert synced(cluster, two, group, member)["assignment"] == b"all"
    cluster.move_group(two, one, group)
    assert heartbeat(cluster, one, group, member) == NONE


def test_who_waits_for_a_rebalance_hears_that_the_group_moves(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    group = cluster.group_on(one)
    member = joined(cluster, one, group)
    synced(cluster, one, group, member)

    async def join_second() -> Any:
        body = {"group_id": group, "session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
        body |= {"protocol_type": "consumer", "protocols": [PROTOCOL]}
        body |= {"group_instance_id": "second"}
        return await (await cluster.connection(one)).ask(JOIN_GROUP, 7, body)

    waiting = cluster.start_task(join_second())
    cluster.world.sleep(1)
    assert not waiting.done()
    cluster.move_group(one, two, group)
    cluster.until(waiting.done)
    assert waiting.result()["error_code"] in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ELSEWHERE)
    assert heartbeat(cluster, two, group, member) in (NONE, ErrorCode.REBALANCE_IN_PROGRESS)


def test_members_of_the_newer_protocol_join_again_with_a_higher_epoch(
    cluster: KafkaCluster,
) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders")
    group = cluster.group_on(one)

    def beat(broker: TxnBroker, epoch: int) -> Any:
        body = {"group_id": group, "member_id": "m", "member_epoch": epoch}
        body |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"]}
        body |= {"topic_partitions": []}
        return cluster.ask(broker, GROUP_HEARTBEAT, 1, body)

    first = beat(one, 0)
    assert not first["error_code"], first
    assert beat(two, first["member_epoch"])["error_code"] == ELSEWHERE
    cluster.move_group(one, two, group)
    assert beat(two, first["member_epoch"])["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    again = beat(two, 0)
    assert not again["error_code"]
    assert again["member_epoch"] > first["member_epoch"]


def test_a_broker_that_may_have_lost_its_groups_does_not_answer_from_memory(
    cluster: KafkaCluster,
) -> None:
    one, _ = cluster.two()
    cluster.create(one, "orders")
    group = cluster.group_on(one)
    assert commit(cluster, one, group, 1) == NONE
    certain = [True]
    groups = one.broker._kafka
    assert groups is not None
    groups.services.groups._is_certain = lambda: certain[0]
    certain[0] = False
    assert committed(cluster, one, group) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    certain[0] = True
    assert committed(cluster, one, group) == (NONE, 1)


def test_unchanged_consumers_read_on_while_brokers_die(cluster: KafkaCluster) -> None:
    one, two = cluster.two()
    cluster.create(one, "orders", 4)
    group = cluster.group_on(one)
    servers = [f"127.0.0.1:{each.kafka_port}" for each in (one, two)]
    found: list[tuple[int, int]] = []

    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
        await producer.start()
        for number in range(100):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 4)
            await asyncio.sleep(0.1)
        await producer.stop()

    async def consume() -> None:
        consumer = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        while len(set(found)) < 100:
            record = await consumer.getone()
            found.append((record.partition, record.offset))
            await consumer.commit()
        await consumer.stop()

    sending, reading = cluster.start_task(send()), cluster.start_task(consume())
    cluster.until(lambda: len(found) > 20 or reading.done())
    cluster.crash(one)
    cluster.until(lambda: reading.done() and sending.done())
    sending.result()
    reading.result()
    assert sorted(set(found)) == [(p, offset) for p in range(4) for offset in range(25)]


def test_any_broker_lists_the_groups_of_all_and_each_forgets_a_deleted_topic() -> None:
    cluster = KafkaCluster(0, serves_http=True)
    try:
        brokers = cluster.two()
        cluster.create(brokers[0], "orders")
        groups = [cluster.group_on(each) for each in brokers]
        for broker, group in zip(brokers, groups, strict=True):
            assert commit(cluster, broker, group, 3) == NONE
        for broker in brokers:
            rest = Rest(cluster, broker)
            found = rest.get("v3/kafka/groups")
            assert [each["group"] for each in found] == sorted(groups)
            for group in groups:
                (place,) = rest.get(f"v3/kafka/groups/{group}")["offsets"]
                assert (place["committedOffset"], place["endOffset"], place["lag"]) == (3, 0, 0)
        cluster.ask(brokers[0], DELETE_TOPICS, 5, {"topic_names": ["orders"], "timeout_ms": 9_000})
        for broker, group in zip(brokers, groups, strict=True):
            assert committed(cluster, broker, group) == (NONE, -1)
    finally:
        cluster.close()
