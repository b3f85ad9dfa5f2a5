"""Produce, Fetch and ListOffsets request by request: errors, copies, limits, waits."""

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from kafka_batches import split_batches
from kafka_produce import (
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    PRODUCE,
    batch,
    create,
    fetch_body,
    fetched,
    produce,
    produce_body,
    sequenced,
)
from raw_kafka import RawKafka

from pybroker.base.errors import PersistenceError
from pybroker.broker.persistent.topic import Topic
from pybroker.client import Client, ProducerAccessMode
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import CONTROL, TRANSACTIONAL, header_of
from pybroker.testing import RunningBroker, broker

NUMBERS = itertools.count()
DESCRIBE_PRODUCERS, OFFSET_FOR_LEADER_EPOCH = 61, 23


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, http=True) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(raw: RawKafka) -> str:
    name = f"topic-{next(NUMBERS)}"
    create(raw, name)
    return name


def offsets_of(records: bytes) -> list[tuple[int, int]]:
    headers = [header_of(each) for each in split_batches(records)]
    return [(each.base_offset, each.last_offset) for each in headers]


def listed(raw: RawKafka, topic: str, timestamp: int, version: int = 7) -> tuple[int, int, int]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
    (found,) = raw.ask(LIST_OFFSETS, version, asked)["topics"][0]["partitions"]
    return found["error_code"], found["offset"], found["timestamp"]


# -- Produce


@pytest.mark.parametrize("version", range(3, 13))
def test_offsets_count_records_in_every_version(raw: RawKafka, topic: str, version: int) -> None:
    assert produce(raw, topic, batch(b"a", b"b"), version) == (0, 0)
    assert produce(raw, topic, batch(b"c"), version) == (0, 2)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a") + batch(b"b"), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:16] + b"\1" + batch(b"a")[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (batch(b"a", attributes=CONTROL), ErrorCode.INVALID_RECORD),
        (batch(b"a", attributes=TRANSACTIONAL), ErrorCode.INVALID_RECORD),
        (batch(b"a", attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(bytes(6 << 20)), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_bad_batches_are_refused_and_the_connection_stays(
    raw: RawKafka, topic: str, records: bytes, code: ErrorCode
) -> None:
    assert produce(raw, topic, records) == (code, -1)
    assert produce(raw, topic, batch(b"good")) == (0, 0)


def test_a_refusal_is_told_in_a_sentence(raw: RawKafka, topic: str) -> None:
    body = raw.ask(PRODUCE, 9, produce_body(topic, batch(b"a", attributes=CONTROL)))
    (partition,) = body["responses"][0]["partition_responses"]
    assert partition["error_message"] == "Only the broker writes control batches"


def test_acks_of_another_number_are_refused(raw: RawKafka, topic: str) -> None:
    body = raw.ask(PRODUCE, 9, produce_body(topic, batch(b"a"), acks=2))
    (partition,) = body["responses"][0]["partition_responses"]
    assert partition["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS


def test_acks_0_has_no_response(raw: RawKafka, topic: str) -> None:
    raw.send(PRODUCE, 9, produce_body(topic, batch(b"a"), acks=0))
    raw._sent.pop()
    assert produce(raw, topic, batch(b"b")) == (0, 1)


def test_a_partition_that_is_not_there_fails_alone(raw: RawKafka, topic: str) -> None:
    body = raw.ask(PRODUCE, 9, produce_body(topic, batch(b"a"), batch(b"b")))
    first, second = body["responses"][0]["partition_responses"]
    assert (first["error_code"], first["base_offset"]) == (0, 0)
    assert second["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_requests_in_flight_are_answered_in_order(raw: RawKafka, topic: str) -> None:
    for _ in range(30):
        raw.send(PRODUCE, 9, produce_body(topic, batch(b"x")))
    answers = [raw.receive()["responses"][0]["partition_responses"][0] for _ in range(30)]
    assert [each["base_offset"] for each in answers] == list(range(30))


def test_a_topic_that_only_pulsars_policies_refuse(running: RunningBroker, raw: RawKafka) -> None:
    with Client(running.service_url) as client:
        client.create_producer("exclusive", access_mode=ProducerAccessMode.Exclusive)
        code, _ = produce(raw, "exclusive", batch(b"a"))
    assert code == ErrorCode.POLICY_VIOLATION


def ask_admin(running: RunningBroker, method: str, path: str, body: object = None) -> None:
    request = urllib.request.Request(
        f"{running.admin_url}/admin/v2/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    urllib.request.urlopen(request, timeout=30).close()


def test_a_topics_own_limit_of_size_is_kept(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    assert produce(raw, topic, batch(bytes(900))) == (0, 0)
    ask_admin(running, "POST", f"persistent/public/default/{topic}/maxMessageSize", 1000)
    assert produce(raw, topic, batch(bytes(2000)))[0] == ErrorCode.MESSAGE_TOO_LARGE
    assert produce(raw, topic, batch(bytes(100))) == (0, 1)


def test_a_topic_that_wants_encryption_takes_no_records(running: RunningBroker) -> None:
    with broker(kafka=True, http=True) as started, RawKafka(started.kafka_bootstrap) as raw:
        ask_admin(started, "POST", "namespaces/public/default/encryptionRequired", True)
        create(raw, "t")
        assert produce(raw, "t", batch(b"a"))[0] == ErrorCode.POLICY_VIOLATION


def test_a_truncated_topic_goes_on_where_it_was(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    for first in range(3):
        produce(raw, topic, sequenced(first, b"a"))
    path = f"persistent/public/default/{topic}-partition-0/truncate"
    ask_admin(running, "DELETE", path)
    assert listed(raw, topic, -2)[1] == listed(raw, topic, -1)[1] == 3
    assert fetched(raw, topic, 0)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert produce(raw, topic, sequenced(2, b"a")) == (0, 2)
    assert produce(raw, topic, sequenced(3, b"a")) == (0, 3)
    assert offsets_of(fetched(raw, topic, 3)["records"]) == [(3, 3)]


# -- idempotent producers


def test_every_producer_gets_another_id(raw: RawKafka) -> None:
    asked = {"transactional_id": None, "transaction_timeout_ms": 1000}
    found = [raw.ask(INIT_PRODUCER_ID, version, asked) for version in range(6)]
    assert {(each["error_code"], each["producer_epoch"]) for each in found} == {(0, 0)}
    assert len({each["producer_id"] for each in found}) == 6


def test_a_copy_is_answered_with_the_offset_of_the_first(raw: RawKafka, topic: str) -> None:
    for first in range(5):
        assert produce(raw, topic, sequenced(2 * first, b"a", b"b")) == (0, 2 * first)
    assert produce(raw, topic, sequenced(2, b"a", b"b")) == (0, 2)
    assert produce(raw, topic, sequenced(10, b"c")) == (0, 10)
    assert listed(raw, topic, -1)[1] == 11


def test_gaps_old_copies_and_old_epochs_have_their_codes(raw: RawKafka, topic: str) -> None:
    for first in range(7):
        assert produce(raw, topic, sequenced(first, b"a"))[0] == 0
    assert produce(raw, topic, sequenced(9, b"a"))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(raw, topic, sequenced(0, b"a"))[0] == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert produce(raw, topic, sequenced(0, b"a", epoch=1)) == (0, 7)
    assert produce(raw, topic, sequenced(7, b"a"))[0] == ErrorCode.INVALID_PRODUCER_EPOCH


def test_producers_are_described(raw: RawKafka, topic: str) -> None:
    produce(raw, topic, sequenced(0, b"a", b"b", producer_id=77, epoch=3))
    asked = {"topics": [{"name": topic, "partition_indexes": [0, 5]}]}
    first, second = raw.ask(DESCRIBE_PRODUCERS, 0, asked)["topics"][0]["partitions"]
    (producer,) = first["active_producers"]
    assert (producer["producer_id"], producer["producer_epoch"]) == (77, 3)
    assert producer["last_sequence"] == 1 and producer["last_timestamp"] > 0
    assert second["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("end", ["restart", "kill_and_restart"])
def test_sequences_and_offsets_go_on_after_a_restart(end: str) -> None:
    with broker(kafka=True) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            create(raw, "t")
            for first in range(6):
                assert produce(raw, "t", sequenced(first, b"%d" % first)) == (0, first)
        getattr(started, end)()
        with RawKafka(started.kafka_bootstrap) as raw:
            assert produce(raw, "t", sequenced(5, b"5")) == (0, 5)
            assert produce(raw, "t", sequenced(0, b"0"))[0] == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            assert produce(raw, "t", sequenced(7, b"7"))[0] == 45
            code, offset = produce(raw, "t", sequenced(6, b"6"))
            assert code == 0 and offset >= 6
            found = offsets_of(fetched(raw, "t", 0)["records"])
            assert found == [*((at, at) for at in range(6)), (offset, offset)]


def test_a_snapshot_and_the_log_behind_it_tell_the_sequences() -> None:
    count = 1_100  # a snapshot is written after a thousand batches
    with broker(kafka=True) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            create(raw, "t")
            for first in range(0, count, 50):
                for each in range(first, first + 50):
                    raw.send(PRODUCE, 9, produce_body("t", sequenced(each, b"x")))
                for _ in range(50):
                    raw.receive()

        async def snapshots(found: Any) -> list[str]:
            return list(found.metadata.keys("/kafka-producers/"))

        started.wait_until(lambda: started.call(snapshots) != [])
        started.kill_and_restart()
        with RawKafka(started.kafka_bootstrap) as raw:
            assert produce(raw, "t", sequenced(count - 1, b"x")) == (0, count - 1)
            assert produce(raw, "t", sequenced(7, b"x"))[0] == 46
            assert produce(raw, "t", sequenced(count + 1, b"x"))[0] == 45
            assert produce(raw, "t", sequenced(count, b"x"))[0] == 0


def fails(found: Topic, producer: Any, run: Any, published: Any, taken: Any = None) -> None:
    published(None, PersistenceError("the disk is full"))


def test_a_write_that_fails_may_be_sent_again(
    raw: RawKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert produce(raw, topic, sequenced(0, b"a")) == (0, 0)
    with monkeypatch.context() as failing:
        failing.setattr(Topic, "publish", fails)
        assert produce(raw, topic, sequenced(1, b"b"))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert produce(raw, topic, sequenced(1, b"b")) == (0, 1)


# -- Fetch


@pytest.mark.parametrize("version", range(4, 13))
def test_batches_are_read_in_every_version(raw: RawKafka, topic: str, version: int) -> None:
    produce(raw, topic, batch(b"a", b"b"))
    produce(raw, topic, batch(b"c"))
    body = raw.ask(FETCH, version, fetch_body(topic, 1))
    (partition,) = body["responses"][0]["partitions"]
    assert offsets_of(partition["records"]) == [(0, 1), (2, 2)]
    assert (partition["high_watermark"], partition["last_stable_offset"]) == (3, 3)


def test_an_offset_beyond_the_log_is_out_of_range(raw: RawKafka, topic: str) -> None:
    produce(raw, topic, batch(b"a"))
    for offset in (-1, 2, 2**62):
        assert fetched(raw, topic, offset)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(raw, topic, 1)["error_code"] == 0


def test_a_topic_that_is_not_there_is_unknown(raw: RawKafka) -> None:
    answer = fetched(raw, "nowhere", 0)
    assert answer["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_the_first_batch_may_be_larger_than_the_limit(raw: RawKafka, topic: str) -> None:
    for _ in range(4):
        produce(raw, topic, batch(bytes(1000)))
    assert offsets_of(fetched(raw, topic, 0, most_bytes=10)["records"]) == [(0, 0)]
    assert offsets_of(fetched(raw, topic, 0, most_bytes=2500)["records"]) == [(0, 0), (1, 1)]
    assert offsets_of(fetched(raw, topic, 3, most_bytes=2500)["records"]) == [(3, 3)]


def test_a_leader_epoch_that_nobody_had_is_unknown(raw: RawKafka, topic: str) -> None:
    answer = fetched(raw, topic, 0, current_leader_epoch=3)
    assert answer["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_fetch_waits_until_there_is_something(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    raw.send(FETCH, 12, fetch_body(topic, 0, wait_ms=25_000))
    with RawKafka(running.kafka_bootstrap) as other:
        produce(other, topic, batch(b"at last"))
    (partition,) = raw.receive()["responses"][0]["partitions"]
    assert offsets_of(partition["records"]) == [(0, 0)]


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    size = len(batch(bytes(100)))
    raw.send(FETCH, 12, fetch_body(topic, 0, min_bytes=3 * size, wait_ms=25_000))
    with RawKafka(running.kafka_bootstrap) as other:
        for _ in range(3):
            produce(other, topic, batch(bytes(100)))
    (partition,) = raw.receive()["responses"][0]["partitions"]
    assert offsets_of(partition["records"]) == [(0, 0), (1, 1), (2, 2)]


def test_a_fetch_without_news_ends_at_its_time(raw: RawKafka, topic: str) -> None:
    began = time.monotonic()
    answer = fetched(raw, topic, 0, wait_ms=300)
    assert time.monotonic() - began >= 0.3
    assert (answer["error_code"], answer["records"]) == (0, b"")


def test_a_message_of_pulsar_wakes_a_fetch(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    raw.send(FETCH, 12, fetch_body(topic, 0, wait_ms=25_000))
    with Client(running.service_url) as client:
        client.create_producer(topic).send(b"from pulsar")
    (partition,) = raw.receive()["responses"][0]["partitions"]
    assert offsets_of(partition["records"]) == [(0, 0)]


def test_a_topic_that_is_unloaded_ends_the_wait(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    raw.send(FETCH, 12, fetch_body(topic, 0, wait_ms=25_000))

    async def is_awaited(found: Any) -> bool:
        loaded = await found.topics.get(f"{topic}-partition-0")
        return bool(loaded.view and loaded.view.waiting)

    async def unload(found: Any) -> None:
        loaded = await found.topics.get(f"{topic}-partition-0")
        await found.topics.unload(loaded.name)

    running.wait_until(lambda: running.call(is_awaited))
    running.call(unload)
    (partition,) = raw.receive()["responses"][0]["partitions"]
    assert partition["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_that_dies_while_it_waits_leaves_nothing_behind(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    async def waits(found: Any) -> int:
        loaded = await found.topics.get(f"{topic}-partition-0")
        return len(loaded.view.waiting) if loaded.view else 0

    produce(raw, topic, batch(b"a"))
    with RawKafka(running.kafka_bootstrap) as other:
        other.send(FETCH, 12, fetch_body(topic, 1, wait_ms=25_000))
        running.wait_until(lambda: running.call(waits) == 1)
    running.wait_until(lambda: running.call(waits) == 0)


def test_read_committed_ends_at_the_open_transaction(
    running: RunningBroker, raw: RawKafka, topic: str
) -> None:
    with Client(running.service_url) as client:
        producer = client.create_producer(topic)
        producer.send(b"before")
        transaction = client.new_transaction()
        producer.send(b"open", txn=transaction)
        committed = fetched(raw, topic, 0, committed=True)
        assert offsets_of(committed["records"]) == [(0, 0)]
        assert (committed["high_watermark"], committed["last_stable_offset"]) == (2, 1)
        assert offsets_of(fetched(raw, topic, 0)["records"]) == [(0, 0), (1, 1)]
        raw.send(FETCH, 12, fetch_body(topic, 1, wait_ms=25_000, committed=True))
        transaction.abort()
    (partition,) = raw.receive()["responses"][0]["partitions"]
    (placeholder,) = split_batches(partition["records"])
    assert header_of(placeholder).record_count == 0
    assert offsets_of(partition["records"]) == [(1, 1)]
    assert partition["last_stable_offset"] == 2


# -- ListOffsets, OffsetForLeaderEpoch


@pytest.mark.parametrize("version", range(1, 12))
def test_the_ends_of_the_log(raw: RawKafka, topic: str, version: int) -> None:
    produce(raw, topic, batch(b"a", b"b"))
    assert listed(raw, topic, -2, version)[:2] == (0, 0)
    assert listed(raw, topic, -1, version)[:2] == (0, 2)


def test_offsets_by_time(raw: RawKafka, topic: str) -> None:
    times = (1_000, 2_000, 3_000, 2_500)
    for at in times:
        produce(raw, topic, batch(b"a", base_timestamp=at, max_timestamp=at))
    assert listed(raw, topic, 1_500) == (0, 1, 2_000)
    assert listed(raw, topic, 2_000) == (0, 1, 2_000)
    assert listed(raw, topic, 9_999) == (0, -1, -1)
    assert listed(raw, topic, -3) == (0, 2, 3_000)
    assert listed(raw, topic, -5) == (0, -1, -1)


def test_the_epoch_of_the_log_ends_where_the_log_ends(raw: RawKafka, topic: str) -> None:
    produce(raw, topic, batch(b"a"))
    partition = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
    asked = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}
    (found,) = raw.ask(OFFSET_FOR_LEADER_EPOCH, 4, asked)["topics"][0]["partitions"]
    assert (found["leader_epoch"], found["end_offset"]) == (0, 1)


def test_an_epoch_that_is_still_to_come_has_no_end(raw: RawKafka, topic: str) -> None:
    partition = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 1}
    asked = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}
    (found,) = raw.ask(OFFSET_FOR_LEADER_EPOCH, 4, asked)["topics"][0]["partitions"]
    assert (found["error_code"], found["leader_epoch"], found["end_offset"]) == (0, -1, -1)


# -- topics that were there before


def test_messages_that_were_there_before_have_the_first_offsets(
    running: RunningBroker, raw: RawKafka
) -> None:
    with Client(running.service_url) as client:
        producer = client.create_producer("older")
        for at in range(5):
            producer.send(b"%d" % at)
        assert listed(raw, "older", -1)[1] == 5
        assert produce(raw, "older", batch(b"kafka", b"kafka")) == (0, 5)
        producer.send(b"last")
    assert offsets_of(fetched(raw, "older", 0)["records"]) == [
        *((at, at) for at in range(5)),
        (5, 6),
        (7, 7),
    ]
    assert offsets_of(fetched(raw, "older", 3)["records"])[0] == (3, 3)
    assert offsets_of(fetched(raw, "older", 7)["records"]) == [(7, 7)]


def test_messages_that_come_while_older_ones_are_counted_have_their_offsets() -> None:
    with broker(kafka=True) as started, Client(started.service_url) as client:
        producer = client.create_producer("busy", block_if_queue_full=True)
        for at in range(3_000):
            producer.send_async(b"%d" % at, lambda *_: None)
        sending = threading.Thread(
            target=lambda: [producer.send_async(b"%d" % at, lambda *_: None) for at in range(3_000)]
        )
        sending.start()
        with RawKafka(started.kafka_bootstrap) as raw:
            code, offset = produce(raw, "busy", batch(b"kafka"))
            sending.join()
            producer.flush()
            assert code == 0
            at, found = 0, []
            while True:
                records = fetched(raw, "busy", at)["records"]
                if not records:
                    break
                found += offsets_of(records)
                at = found[-1][1] + 1
        assert [first for first, _ in found] == [0, *(last + 1 for _, last in found[:-1])]
        assert found[-1][1] == 6_000 and any(first == offset for first, _ in found)
        started.restart()
        with RawKafka(started.kafka_bootstrap) as raw:
            assert listed(raw, "busy", -1)[1] == 6_001
            assert offsets_of(fetched(raw, "busy", 2_500)["records"])[0][0] <= 2_500
            assert produce(raw, "busy", batch(b"kafka")) == (0, 6_001)
