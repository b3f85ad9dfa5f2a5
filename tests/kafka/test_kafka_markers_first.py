"""A log that begins with markers: no message has an offset in front of theirs."""

from collections.abc import Iterator

import pytest
from kafka_produce import LIST_OFFSETS, batch, create, fetched, produce
from kafka_words import TOPIC
from raw_kafka import RawKafka

from pybroker.client import Client, InitialPosition
from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

LATEST = -1


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    settings = {"transaction_buffer": "commitOrder", "broker_deduplication_enabled": True}
    with broker(kafka=True, **settings) as started:
        yield started


def abort(running: RunningBroker, count: int) -> None:
    """Commit order and deduplication leave markers of them in the log, and nothing else."""
    with Client(running.service_url) as client:
        producer = client.create_producer(TOPIC)
        for _ in range(count):
            txn = client.new_transaction()
            producer.send(b"aborted", txn=txn)
            txn.abort()


def latest(raw: RawKafka) -> int:
    asked = {"partition_index": 0, "timestamp": LATEST}
    topics = [{"name": TOPIC, "partitions": [asked]}]
    body = raw.ask(LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 1, "topics": topics})
    offset: int = body["topics"][0]["partitions"][0]["offset"]
    return offset


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("ends", [1, 2])
def test_markers_take_no_offset_when_no_message_is_in_front_of_them(
    running: RunningBroker, ends: int, restarts: bool
) -> None:
    """Their index -1 was read as 2^64 - 1: a fetch filled memory (seed 170000623)."""
    with RawKafka(running.kafka_bootstrap) as raw:
        create(raw, TOPIC)
        fetched(raw, TOPIC, 0)
    abort(running, ends)
    if restarts:
        running.restart()
    with RawKafka(running.kafka_bootstrap) as raw:
        found = fetched(raw, TOPIC, 0)
        assert (found["error_code"], found["high_watermark"]) == (ErrorCode.NONE, 0)
        assert not found["records"]
        assert latest(raw) == 0
        assert produce(raw, TOPIC, batch(b"a", b"b")) == (0, 0)
        assert fetched(raw, TOPIC, 0)["records"]
        assert latest(raw) == 2


def test_what_follows_markers_at_the_beginning_is_found_by_both_protocols(
    running: RunningBroker,
) -> None:
    with RawKafka(running.kafka_bootstrap) as raw:
        create(raw, TOPIC)
        fetched(raw, TOPIC, 0)
        abort(running, 2)
        with Client(running.service_url) as client:
            client.create_producer(TOPIC).send(b"first")
            reader = client.subscribe(TOPIC, "all", initial_position=InitialPosition.Earliest)
            assert reader.receive(timeout_millis=10_000).data() == b"first"
        assert b"first" in fetched(raw, TOPIC, 0)["records"]
        assert fetched(raw, TOPIC, 0)["high_watermark"] == 1
