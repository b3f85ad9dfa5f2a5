"""DeleteRecords: a partition begins at a later offset; and records with the broker's time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_batches import batch_records, split_batches
from kafka_produce import (
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    batch,
    fetch_body,
    fetched,
    produce,
    produce_body,
    sequenced,
)
from kafka_words import add_partition, end, inited
from raw_kafka import RawKafka

from pybroker.base.names import TopicName
from pybroker.client import Client, InitialPosition
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import LOG_APPEND_TIME, TRANSACTIONAL, checked
from pybroker.testing import RunningBroker, broker

CREATE_TOPICS, DELETE_RECORDS, ALTER_CONFIGS = 19, 21, 44
OLD = {"base_timestamp": 1_000, "max_timestamp": 1_000}
NONE, OUT_OF_RANGE = ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def create(raw: RawKafka, topic: str, **configs: str) -> None:
    named = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": []}
    body = {"topics": [wanted | {"configs": named}], "timeout_ms": 10_000, "validate_only": False}
    (answer,) = raw.ask(CREATE_TOPICS, 5, body)["topics"]
    assert answer["error_code"] == NONE


def filled(raw: RawKafka, topic: str, messages: int = 5) -> str:
    create(raw, topic)
    for number in range(messages):
        assert produce(raw, topic, batch(b"%d" % number, **OLD)) == (NONE, number)
    return topic


def delete(raw: RawKafka, topic: str, before: int) -> tuple[int, int]:
    """The code, and where the partition begins now."""
    partitions = [{"partition_index": 0, "offset": before}]
    body = {"topics": [{"name": topic, "partitions": partitions}], "timeout_ms": 10_000}
    (found,) = raw.ask(DELETE_RECORDS, 2, body)["topics"][0]["partitions"]
    return found["error_code"], found["low_watermark"]


def begins(raw: RawKafka, topic: str, timestamp: int = -2) -> int:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [partition]}]
    body = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    (found,) = raw.ask(LIST_OFFSETS, 6, body)["topics"][0]["partitions"]
    offset: int = found["offset"]
    return offset


def values(raw: RawKafka, topic: str, offset: int) -> list[bytes | None]:
    found = fetched(raw, topic, offset)
    assert found["error_code"] == NONE, found
    parts = split_batches(found["records"])
    return [each.value for part in parts for each in batch_records(part)[1]]


# -- DeleteRecords


def test_a_partition_begins_where_it_was_deleted_to(raw: RawKafka) -> None:
    topic = filled(raw, "deleted")
    assert delete(raw, topic, 3) == (NONE, 3)
    assert begins(raw, topic) == 3
    assert fetched(raw, topic, 2)["error_code"] == OUT_OF_RANGE
    assert fetched(raw, topic, 3)["log_start_offset"] == 3
    assert values(raw, topic, 3) == [b"3", b"4"]
    assert begins(raw, topic, timestamp=0) == 3
    assert delete(raw, topic, 2) == (NONE, 3)


@pytest.mark.parametrize("before", [6, -2, 2**62])
def test_what_is_not_there_cannot_be_deleted(raw: RawKafka, before: int) -> None:
    topic = filled(raw, f"beyond-{before}")
    assert delete(raw, topic, before) == (OUT_OF_RANGE, -1)
    assert begins(raw, topic) == 0


def test_everything_is_deleted_and_stays_so_after_a_crash(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            topic = filled(raw, "all")
            assert delete(raw, topic, -1) == (NONE, 5)

            async def ledgers(started: Any) -> int:
                name = TopicName.parse(topic).partition_at(0)
                return len((await started.topics.get(name)).ledger.ledgers())

            assert running.call(ledgers) == 1
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert begins(raw, topic) == begins(raw, topic, -1) == 5
            assert produce(raw, topic, batch(b"5")) == (NONE, 5)
            assert values(raw, topic, 5) == [b"5"]


def test_a_place_within_a_batch_stays_after_a_crash(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw, "within")
            produce(raw, "within", batch(b"0", b"1", b"2"))
            assert delete(raw, "within", 2) == (NONE, 2)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert begins(raw, "within") == 2
            assert fetched(raw, "within", 1)["error_code"] == OUT_OF_RANGE
            assert values(raw, "within", 2) == [b"0", b"1", b"2"]  # whole, as in Kafka


def test_messages_of_open_transactions_stay(raw: RawKafka) -> None:
    topic = filled(raw, "open", 2)
    producer = inited(raw, "holds")
    add_partition(raw, producer, topic)
    ours = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    records = batch(b"held", attributes=TRANSACTIONAL, base_sequence=0, **ours)
    body = produce_body(topic, records) | {"transactional_id": producer.name}
    raw.ask(PRODUCE, 9, body)
    assert delete(raw, topic, 3) == (OUT_OF_RANGE, -1)
    assert delete(raw, topic, -1) == (NONE, 2)
    assert end(raw, producer) is NONE
    assert fetched(raw, topic, 2, committed=True)["records"]


def test_subscriptions_of_pulsars_clients_move_on(running: RunningBroker, raw: RawKafka) -> None:
    topic = filled(raw, "shared")
    with Client(running.service_url) as client:
        first = InitialPosition.Earliest
        with client.subscribe(topic, "s", initial_position=first):
            pass
        assert delete(raw, topic, 4) == (NONE, 4)
        with client.subscribe(topic, "s", initial_position=first) as consumer:
            assert consumer.receive(timeout_millis=10_000).data() == b"4"


def test_a_topic_that_is_only_compacted_keeps_its_messages(raw: RawKafka) -> None:
    create(raw, "compacted", cleanup_policy="compact")
    produce(raw, "compacted", batch(b"0"))
    assert delete(raw, "compacted", 1) == (ErrorCode.POLICY_VIOLATION, -1)


def test_producers_are_known_after_their_batches_were_deleted(tmp_path: Path) -> None:
    with broker(data_dir=tmp_path, kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw, "known")
            assert produce(raw, "known", sequenced(0, b"0")) == (NONE, 0)
            assert delete(raw, "known", -1) == (NONE, 1)
        running.kill_and_restart()
        with RawKafka(running.kafka_bootstrap) as raw:
            assert produce(raw, "known", sequenced(0, b"0")) == (NONE, 0)
            assert produce(raw, "known", sequenced(1, b"1")) == (NONE, 1)


# -- LogAppendTime


def appended(raw: RawKafka, topic: str, records: bytes) -> tuple[int, int]:
    """The code, and the time that the records got."""
    body = raw.ask(PRODUCE, 9, produce_body(topic, records))
    (partition,) = body["responses"][0]["partition_responses"]
    return partition["error_code"], partition["log_append_time_ms"]


def set_type(raw: RawKafka, topic: str, value: str) -> None:
    config = {"name": "message.timestamp.type", "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    body = {"resources": [resource], "validate_only": False}
    (answer,) = raw.ask(ALTER_CONFIGS, 1, body)["responses"]
    assert answer["error_code"] == NONE


def test_records_get_the_brokers_time(raw: RawKafka) -> None:
    create(raw, "timed", message_timestamp_type="LogAppendTime")
    code, time_ms = appended(raw, "timed", batch(b"a", b"b", **OLD))
    assert code == NONE
    assert time_ms > 1_600_000_000_000
    header = checked(fetched(raw, "timed", 0)["records"])
    assert header.attributes & LOG_APPEND_TIME
    assert (header.max_timestamp, header.base_timestamp) == (time_ms, 1_000)
    assert begins(raw, "timed", timestamp=time_ms) == 0


def test_the_type_counts_from_when_it_is_set(raw: RawKafka) -> None:
    create(raw, "later")
    assert appended(raw, "later", batch(b"a", **OLD)) == (NONE, -1)
    set_type(raw, "later", "LogAppendTime")
    assert appended(raw, "later", batch(b"b", **OLD))[1] > 1_000
    set_type(raw, "later", "CreateTime")
    assert appended(raw, "later", batch(b"c", **OLD)) == (NONE, -1)
    headers = [checked(each) for each in split_batches(fetched(raw, "later", 0)["records"])]
    assert [bool(each.attributes & LOG_APPEND_TIME) for each in headers] == [False, True, False]


def test_a_copy_is_answered_with_the_time_of_the_first(raw: RawKafka) -> None:
    create(raw, "copies", message_timestamp_type="LogAppendTime")
    first = appended(raw, "copies", sequenced(0, b"a"))
    assert appended(raw, "copies", sequenced(0, b"a")) == first


def test_a_producer_does_not_say_when_its_records_were_appended(raw: RawKafka) -> None:
    create(raw, "claims")
    claims = batch(b"a", attributes=LOG_APPEND_TIME, **OLD)
    assert appended(raw, "claims", claims)[0] == ErrorCode.INVALID_TIMESTAMP
    assert not raw.ask(FETCH, 12, fetch_body("claims", 0))["responses"][0]["partitions"][0][
        "records"
    ]


def test_consumers_of_pulsar_see_the_time_as_publish_time(
    running: RunningBroker, raw: RawKafka
) -> None:
    create(raw, "seen", message_timestamp_type="LogAppendTime")
    _, time_ms = appended(raw, "seen", batch(b"a", **OLD))
    with Client(running.service_url) as client:
        first = InitialPosition.Earliest
        with client.subscribe("seen", "s", initial_position=first) as consumer:
            message = consumer.receive(timeout_millis=10_000)
            assert (message.publish_timestamp(), message.event_timestamp()) == (time_ms, 0)
