"""A topic of Kafka's clients is made scalable by force: they read what there is, and can write no
more. What they are told is in Kafka's words.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from kafka_produce import create, fetched, produce, sequenced
from kafka_words import OFFSET_COMMIT, add_partition, end, inited, offset_of
from raw_kafka import RawKafka

from managed_ledger.position import EARLIEST
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.policies.table import RETENTION
from pybroker.broker.scalable.migration import Migration
from pybroker.client import Client
from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

NONE = ErrorCode.NONE
LIST_OFFSETS, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 2, 19, 20, 37
TRANSACTIONAL: Final = 1 << 4  # an attribute of a batch
GONE: Final = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, default_num_partitions=1) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def ordinary(topic: str) -> TopicName:
    return TopicName.parse(f"persistent://public/default/{topic}")


def migrate(running: RunningBroker, topic: str, force: bool = True) -> None:
    async def work(started: Any) -> None:
        topics = started.topics
        migration = Migration(topics, topics.scalable, topics._services.metadata, topics._clock)
        await migration.migrate(ordinary(topic).scalable_name, force)

    running.call(work)


def prune(running: RunningBroker, topic: str) -> list[int]:
    name = ordinary(topic).scalable_name
    return list(running.call(lambda each: each.topics.scalable.pruner.prune_unneeded(name)))


def test_it_needs_force(running: RunningBroker, raw: RawKafka) -> None:
    create(raw, "used")
    assert produce(raw, "used", sequenced(0, b"a"))[0] == NONE
    with pytest.raises(Conflict, match="Kafka's clients use or have used it"):
        migrate(running, "used", force=False)


def test_what_is_stored_is_read_and_what_comes_is_refused(
    running: RunningBroker, raw: RawKafka
) -> None:
    create(raw, "stored")
    assert produce(raw, "stored", sequenced(0, b"a", b"b"))[0] == NONE
    migrate(running, "stored")
    assert produce(raw, "stored", sequenced(2, b"c"))[0] == ErrorCode.POLICY_VIOLATION
    found = fetched(raw, "stored", 0)
    assert found["error_code"] == NONE and found["high_watermark"] == 2
    assert b"a" in found["records"] and b"b" in found["records"]
    at_the_end = fetched(raw, "stored", 2, wait_ms=10)
    assert (at_the_end["error_code"], at_the_end["records"]) == (NONE, b"")


def test_a_batch_that_was_stored_is_confirmed_when_it_is_sent_again(
    running: RunningBroker, raw: RawKafka
) -> None:
    """Its producer may not have had the answer, and would write it elsewhere after a failure."""
    create(raw, "again")
    known = raw.ask(22, 4, {"transactional_id": None, "transaction_timeout_ms": 60_000})
    fields = {"producer_id": known["producer_id"], "epoch": known["producer_epoch"]}
    assert produce(raw, "again", sequenced(0, b"a", **fields)) == (NONE, 0)
    migrate(running, "again")
    assert produce(raw, "again", sequenced(0, b"a", **fields)) == (NONE, 0)
    assert produce(raw, "again", sequenced(1, b"b", **fields))[0] == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_ends_as_it_was_told(
    running: RunningBroker, raw: RawKafka, committed: bool
) -> None:
    topic = f"open-{committed}"
    create(raw, topic)
    producer = inited(raw, topic)
    assert add_partition(raw, producer, topic) == NONE
    records = sequenced(
        0,
        b"in it",
        producer_id=producer.producer_id,
        epoch=producer.epoch,
        attributes=TRANSACTIONAL,
    )
    assert produce(raw, topic, records, transactional_id=topic)[0] == NONE
    migrate(running, topic)
    assert end(raw, producer, committed) == NONE
    assert (b"in it" in fetched(raw, topic, 0, committed=True)["records"]) == committed


def test_a_group_commits_where_it_is(running: RunningBroker, raw: RawKafka) -> None:
    create(raw, "grouped")
    assert produce(raw, "grouped", sequenced(0, b"a", b"b"))[0] == NONE
    migrate(running, "grouped")
    place = {"partition_index": 0, "committed_offset": 2, "committed_metadata": ""}
    asked = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "grouped", "partitions": [place]}],
    }
    (answer,) = raw.ask(OFFSET_COMMIT, 7, asked)["topics"]
    assert not any(each["error_code"] for each in answer["partitions"])
    assert offset_of(raw, "g", topic="grouped") == 2


def test_it_is_kept_as_long_as_kafkas_clients_were_promised(
    running: RunningBroker, raw: RawKafka
) -> None:
    """Their groups are no subscriptions, for which segments are kept."""
    create(raw, "kept")
    assert produce(raw, "kept", sequenced(0, b"a"))[0] == NONE
    migrate(running, "kept")
    assert prune(running, "kept") == []


def until_pruned(running: RunningBroker, raw: RawKafka, topic: str) -> None:
    create(raw, topic)
    assert produce(raw, topic, sequenced(0, b"a"))[0] == NONE
    migrate(running, topic)
    running.call(lambda started: keep_nothing(started.topics, topic))
    assert prune(running, topic)


async def keep_nothing(topics: Any, topic: str) -> None:
    policy = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    await topics.policies.set_for_topic(ordinary(topic), RETENTION, policy)


def test_pruned_partitions_are_unknown(running: RunningBroker, raw: RawKafka) -> None:
    until_pruned(running, raw, "pruned")
    assert {fetched(raw, "pruned", 0)["error_code"]} == GONE
    place = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    asked = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "pruned", "partitions": [place]}],
    }
    (answer,) = raw.ask(LIST_OFFSETS, 5, asked)["topics"]
    assert {each["error_code"] for each in answer["partitions"]} == GONE
    assert {produce(raw, "pruned", sequenced(1, b"b"))[0]} == GONE


def test_a_partition_that_is_pruned_before_the_others_is_unknown_to_readers(
    running: RunningBroker, raw: RawKafka
) -> None:
    """Whoever writes is told that it is no use to try again."""
    topic, parts = "halves", [ordinary("halves").partition_at(at) for at in range(2)]
    running.call(lambda started: started.topics.create_partitioned(ordinary(topic), 2))
    assert produce(raw, topic, sequenced(0, b"a"))[0] == NONE

    async def subscribe(started: Any) -> None:
        for part in parts:
            found = await started.topics.get(part, create=True)
            await found.subscription("reads", EARLIEST, {}, create=True)
            if part == parts[0]:
                await found.subscriptions["reads"].skip_all()

    running.call(subscribe)
    with Client(running.service_url) as client:
        client.create_producer(str(parts[1])).send(b"unread")
    running.call(lambda started: keep_nothing(started.topics, topic))
    migrate(running, topic)
    assert prune(running, topic) == [0]
    assert {fetched(raw, topic, 0)["error_code"]} == GONE
    assert fetched(raw, topic, 0, partition=1)["error_code"] == NONE
    assert produce(raw, topic, sequenced(1, b"b"))[0] == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("pruned", [False, True])
def test_it_is_changed_as_the_scalable_topic_only(
    running: RunningBroker, raw: RawKafka, pruned: bool
) -> None:
    topic = f"changed-{pruned}"
    if pruned:
        until_pruned(running, raw, topic)
    else:
        create(raw, topic)
        migrate(running, topic)
    asked: dict[str, Any] = {"topic_names": [topic], "timeout_ms": 10_000}
    (answer,) = raw.ask(DELETE_TOPICS, 5, asked)["responses"]
    assert answer["error_code"] == ErrorCode.POLICY_VIOLATION
    assert "use topic://public/default/changed" in answer["error_message"]
    grown = {"name": topic, "count": 5, "assignments": None}
    asked = {"topics": [grown], "timeout_ms": 10_000, "validate_only": False}
    (answer,) = raw.ask(CREATE_PARTITIONS, 2, asked)["results"]
    assert {answer["error_code"]} == (GONE if pruned else {ErrorCode.POLICY_VIOLATION})
    new = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    asked = {"topics": [new | {"assignments": [], "configs": []}], "timeout_ms": 10_000}
    (answer,) = raw.ask(CREATE_TOPICS, 5, asked | {"validate_only": False})["topics"]
    exists, refused = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.POLICY_VIOLATION
    assert answer["error_code"] == (refused if pruned else exists)


def test_kafkas_own_clients_go_on_reading(running: RunningBroker) -> None:
    """librdkafka: a producer gets an error for each message, a consumer of a group reads it all."""
    producer = Producer({"bootstrap.servers": running.kafka_bootstrap})
    errors: list[Any] = []
    for number in range(10):
        producer.produce("clients", b"%d" % number)
    producer.flush(30)
    consumer = Consumer(
        {
            "bootstrap.servers": running.kafka_bootstrap,
            "group.id": "g-clients",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["clients"])
    found = [consumer.consume(5, 30)]
    migrate(running, "clients")
    producer.produce("clients", b"late", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [each.code() for each in errors] == [ErrorCode.POLICY_VIOLATION]
    found.append(consumer.consume(5, 30))
    values = [each.value() for some in found for each in some]
    assert values == [b"%d" % number for number in range(10)]
    consumer.commit(asynchronous=False)
    consumer.close()
