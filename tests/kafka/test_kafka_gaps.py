"""Offsets without a message: whoever waits in front of one reads on."""

from collections.abc import Iterator
from typing import Any

import pytest
from kafka_produce import LIST_OFFSETS, batch, create, fetched, produce, sequenced
from raw_kafka import RawKafka

from managed_ledger.ledger import ManagedLedger
from managed_ledger.trim import Retention
from pybroker.base.errors import PersistenceError
from pybroker.broker.persistent.entry_metadata import OFFSETS, EntryStamps
from pybroker.broker.persistent.topic import Topic
from pybroker.client import Client
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.log import offset_table
from pybroker.kafka.records.batch import header_of
from pybroker.testing import RunningBroker, broker
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

TOPIC = "orders"
EARLIEST = -2
ENTRY = build_entry(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"b")


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        create(connected, TOPIC)
        yield connected


def ledger_of(found: Any) -> ManagedLedger:
    (ledger,) = (each.ledger for each in found.topics.loaded() if TOPIC in str(each.name))
    assert isinstance(ledger, ManagedLedger)
    return ledger


def leave_a_gap(running: RunningBroker, count: int) -> None:
    """As writes of `count` messages do that fail after their entries got their offsets."""

    async def skip(found: Any) -> None:
        stamps = ledger_of(found).interceptor
        assert isinstance(stamps, EntryStamps) and stamps.index is not None
        stamps.index += count

    running.call(skip)


def earliest(raw: RawKafka) -> int:
    asked = {"partition_index": 0, "timestamp": EARLIEST}
    topics = [{"name": TOPIC, "partitions": [asked]}]
    body = raw.ask(LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    offset: int = body["topics"][0]["partitions"][0]["offset"]
    return offset


def test_a_consumer_that_waits_at_the_beginning_reads_over_writes_that_failed(
    running: RunningBroker, raw: RawKafka
) -> None:
    assert fetched(raw, TOPIC, 0)["error_code"] == ErrorCode.NONE
    assert earliest(raw) == 0
    leave_a_gap(running, 3)
    assert produce(raw, TOPIC, batch(b"a", b"b")) == (0, 3)
    found = fetched(raw, TOPIC, 0)
    assert found["error_code"] == ErrorCode.NONE, "its offset was never deleted"
    assert header_of(found["records"]).base_offset == 3
    assert (found["log_start_offset"], earliest(raw)) == (0, 0)


def begin_a_ledger(running: RunningBroker) -> None:
    running.call(lambda found: ledger_of(found).roll_over())


def delete_what_nobody_needs(running: RunningBroker) -> None:
    running.call(lambda found: ledger_of(found).trim(Retention()))


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_log_begins_where_it_began_until_its_first_messages_are_deleted(
    running: RunningBroker, restarts: int
) -> None:
    """It began behind writes that had failed, once its first ledger was full (seed 150002169)."""

    def start() -> int:
        with RawKafka(running.kafka_bootstrap) as raw:
            found = fetched(raw, TOPIC, 0)
            assert found["error_code"] == ErrorCode.NONE
            assert found["log_start_offset"] == earliest(raw)
            return int(found["log_start_offset"])

    with RawKafka(running.kafka_bootstrap) as raw:
        create(raw, TOPIC)
    assert start() == 0
    for _ in range(restarts):
        running.restart()
        assert start() == 0
    leave_a_gap(running, 3)
    for first in (3, 4):
        with RawKafka(running.kafka_bootstrap) as raw:
            assert produce(raw, TOPIC, batch(b"a")) == (0, first)
        begin_a_ledger(running)
        assert start() == 0
    running.restart()
    assert start() == 0
    delete_what_nobody_needs(running)
    with RawKafka(running.kafka_bootstrap) as raw:
        assert fetched(raw, TOPIC, 0)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert earliest(raw) == 5


def test_a_producer_does_not_begin_behind_a_batch_that_it_has_to_send_again(
    running: RunningBroker, raw: RawKafka
) -> None:
    assert produce(raw, "late", sequenced(0, b"a"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create(raw, "late")
    assert produce(raw, "late", sequenced(1, b"b"))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(raw, "late", sequenced(0, b"a")) == (0, 0)
    assert produce(raw, "late", sequenced(1, b"b")) == (0, 1)


def test_a_producer_that_nothing_is_known_of_may_begin_anywhere(
    running: RunningBroker, raw: RawKafka
) -> None:
    assert produce(raw, "late", sequenced(0, b"a"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create(raw, "late")
    with RawKafka(running.kafka_bootstrap) as other:
        assert produce(other, "late", sequenced(1, b"b")) == (0, 0)
    assert produce(raw, TOPIC, sequenced(7, b"c")) == (0, 0)


def test_a_batch_that_no_client_sends_again_is_in_nobodys_way(raw: RawKafka) -> None:
    damaged = sequenced(0, b"a")[:-1] + b"?"
    assert produce(raw, TOPIC, damaged)[0] == ErrorCode.CORRUPT_MESSAGE
    assert produce(raw, TOPIC, sequenced(1, b"b")) == (0, 0)


@pytest.mark.parametrize("rolls", [1, 2])
def test_a_ledger_that_begins_while_messages_are_counted_begins_behind_them(
    running: RunningBroker, raw: RawKafka, monkeypatch: pytest.MonkeyPatch, rolls: int
) -> None:
    """Kafka's clients come to a topic while a Pulsar client fills its ledgers."""
    right, calls = offset_table._no_new_ledger, list[Topic]()

    async def fill(topic: Topic) -> None:
        if not calls:
            calls.append(topic)
            for _ in range(rolls):
                await topic.ledger.append_one(ENTRY)
                await topic.ledger.roll_over()
            await topic.ledger.append_one(ENTRY)
        await right(topic)

    with Client(running.service_url) as client:
        client.create_producer("filled").send(b"a")
    monkeypatch.setattr(offset_table, "_no_new_ledger", fill)
    first = fetched(raw, "filled", 0)
    assert (first["error_code"], first["high_watermark"]) == (ErrorCode.NONE, rolls + 2)
    table = offset_table.OffsetTable.decode(calls[0].ledger.properties[OFFSETS])
    ledger_ids = [info.ledger_id for info in calls[0].ledger.ledgers()]
    assert table.ledgers == dict(zip(ledger_ids, (0, *range(2, rolls + 2)), strict=True))
    assert produce(raw, "filled", batch(b"d")) == (0, rolls + 2)


def test_what_follows_a_beginning_that_was_not_stored_waits_for_it(
    running: RunningBroker, raw: RawKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is known of the producer any more, so that it may begin anywhere."""

    def fails(found: Topic, producer: Any, run: Any, published: Any, taken: Any = None) -> None:
        published(None, PersistenceError("the disk is full"))

    async def forget(started: Any) -> None:
        (topic,) = (each for each in started.topics.loaded() if TOPIC in str(each.name))
        (await topic.view.producers())._by_id.clear()

    with monkeypatch.context() as failing:
        failing.setattr(Topic, "publish", fails)
        assert produce(raw, TOPIC, sequenced(41, b"a"))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    follows = sequenced(42, b"b")
    assert produce(raw, TOPIC, follows)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(raw, TOPIC, sequenced(41, b"a"))[0] == ErrorCode.NONE
    assert produce(raw, TOPIC, follows)[0] == ErrorCode.NONE
    running.call(forget)
    assert produce(raw, TOPIC, sequenced(43, b"c"))[0] == ErrorCode.NONE


def test_a_large_batch_is_found_by_its_time(raw: RawKafka) -> None:
    for time_ms in (1_000, 2_000):
        times = {"base_timestamp": time_ms, "max_timestamp": time_ms}
        assert produce(raw, TOPIC, batch(bytes(1_500_000), **times))[0] == ErrorCode.NONE
    asked = {"partition_index": 0, "timestamp": 1_500}
    topics = [{"name": TOPIC, "partitions": [asked]}]
    found = raw.ask(LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    (partition,) = found["topics"][0]["partitions"]
    assert (partition["offset"], partition["timestamp"]) == (1, 2_000)


def test_a_clean_end_leaves_a_snapshot_of_the_producers(
    running: RunningBroker, raw: RawKafka
) -> None:
    async def snapshots(started: Any) -> list[str]:
        return list(started.metadata.keys("/kafka-producers/"))

    assert produce(raw, TOPIC, sequenced(0, b"a")) == (ErrorCode.NONE, 0)
    assert running.call(snapshots) == []
    running.restart()
    assert len(running.call(snapshots)) == 1


def test_a_snapshot_of_the_producers_is_written_some_time_after_the_last_batch(
    running: RunningBroker, raw: RawKafka
) -> None:
    async def visit(started: Any) -> None:
        for visited in ledger_of(started).on_visit:
            visited()

    async def snapshots(started: Any) -> list[str]:
        return list(started.metadata.keys("/kafka-producers/"))

    assert produce(raw, TOPIC, sequenced(0, b"a")) == (ErrorCode.NONE, 0)
    assert running.call(snapshots) == []
    running.call(visit)
    running.wait_until(lambda: len(running.call(snapshots)) == 1)


def test_a_producer_that_was_idle_for_long_is_not_recovered(
    running: RunningBroker, raw: RawKafka
) -> None:
    assert produce(raw, TOPIC, sequenced(0, b"a")) == (ErrorCode.NONE, 0)
    running.clock.advance("8d")
    running.restart()
    with RawKafka(running.kafka_bootstrap) as again:
        assert produce(again, TOPIC, sequenced(5, b"b"))[0] == ErrorCode.NONE


def test_a_producer_of_id_0_is_recovered(running: RunningBroker, raw: RawKafka) -> None:
    first = sequenced(0, b"a", producer_id=0)
    assert produce(raw, TOPIC, first) == (ErrorCode.NONE, 0)
    running.kill_and_restart()
    with RawKafka(running.kafka_bootstrap) as again:
        assert produce(again, TOPIC, first) == (ErrorCode.NONE, 0)
        out_of_order = sequenced(7, b"b", producer_id=0)
        assert produce(again, TOPIC, out_of_order)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
