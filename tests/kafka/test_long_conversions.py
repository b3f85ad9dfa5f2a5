"""A batch of a few kilobytes may have a million records: whoever reads it lets others work."""

import asyncio

import pytest
from kafka_produce import LIST_OFFSETS, create, produce
from raw_kafka import RawKafka

from pybroker.client import Client, InitialPosition
from pybroker.kafka.conversion import converted
from pybroker.kafka.conversion.converted import FOR_KAFKA, FOR_PULSAR, first_for_pulsar
from pybroker.kafka.conversion.entries import kafka_entry
from pybroker.kafka.conversion.to_kafka import for_kafka
from pybroker.kafka.conversion.to_pulsar import for_pulsar
from pybroker.kafka.records.batch import build_batch, header_of
from pybroker.kafka.records.compression import GZIP, compressed
from pybroker.kafka.records.record import Record, write_records
from pybroker.kafka.records.steps import RECORDS_A_STEP, Budget
from pybroker.testing import broker

MANY = 4 * RECORDS_A_STEP
WAIT_MS = 30_000


def batch(count: int, name: str = "", codec: int = GZIP) -> bytes:
    records = [Record(at, at, None, f"{name}{at}".encode()) for at in range(count)]
    data = compressed(codec, write_records(records))
    times = {"base_timestamp": 1_000, "max_timestamp": 1_000 + count - 1}
    return build_batch(data, count, count - 1, attributes=codec, **times)


def entry(count: int, name: str = "") -> bytes:
    data = batch(count, name)
    return kafka_entry(data, header_of(data), 0, 0, 1_000)


async def turns_during(work: "asyncio.Future[bytes]") -> int:
    """How often another task runs until the work is done."""
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    return turns


@pytest.mark.parametrize("whose", ["Pulsar's", "Kafka's"])
def test_others_work_while_many_messages_are_converted(whose: str) -> None:
    asyncio.run(_convert_beside_others(whose))


async def _convert_beside_others(whose: str) -> None:
    theirs = entry(MANY, whose)
    ours = for_pulsar(theirs)
    kept, key = (FOR_PULSAR, (theirs,)) if whose == "Pulsar's" else (FOR_KAFKA, (ours, 7, MANY))
    first, second = (asyncio.ensure_future(kept.of(*key)) for _ in range(2))
    assert await turns_during(first) >= MANY // RECORDS_A_STEP
    expected = ours if whose == "Pulsar's" else for_kafka(ours, 7, MANY)
    assert await first == await second == expected
    assert await turns_during(asyncio.ensure_future(kept.of(*key))) <= 2  # it is known


def test_what_would_take_long_is_left_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted, "_STEPS_AT_ONCE", 4)
    few, many = entry(2, "few"), entry(MANY, "many")
    assert first_for_pulsar([few, many, few]) == [for_pulsar(few)]
    assert first_for_pulsar([many]) == []
    others = [b"other", few, b"other"]
    assert first_for_pulsar(others) == [b"other", for_pulsar(few), b"other"]
    assert FOR_PULSAR.within(Budget(0), few) == for_pulsar(few)  # it is known


def test_large_batches_reach_consumers_of_pulsar_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted, "_STEPS_AT_ONCE", 1)
    batches = [(f"{at} ", size) for at, size in enumerate((1, 600, 2, 3, 600, 1))]
    with broker(kafka=True) as running:
        with RawKafka(running.kafka_bootstrap) as raw:
            create(raw, "long")
            for name, size in batches:
                assert produce(raw, "long", batch(size, name))[0] == 0
        with Client(running.service_url) as client:
            consumer = client.subscribe("long", "s", initial_position=InitialPosition.Earliest)
            expected = [f"{name}{at}".encode() for name, size in batches for at in range(size)]
            assert [consumer.receive(timeout_millis=WAIT_MS).data() for _ in expected] == expected


def test_a_time_is_found_within_a_large_batch() -> None:
    with broker(kafka=True) as running, RawKafka(running.kafka_bootstrap) as raw:
        create(raw, "times")
        produce(raw, "times", batch(MANY))
        partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": 1_000 + 1_700}
        topics = [{"name": "times", "partitions": [partition]}]
        asked = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        (found,) = raw.ask(LIST_OFFSETS, 6, asked)["topics"][0]["partitions"]
        assert (found["offset"], found["timestamp"]) == (1_700, 2_700)
