"""A batch of a few kilobytes may have a million records, or one of 64 MiB: whoever reads it lets
others work.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kafka_produce import LIST_OFFSETS, create, produce
from raw_kafka import RawKafka

from pybroker.client import Client, InitialPosition
from pybroker.kafka.conversion import converted
from pybroker.kafka.conversion.converted import FOR_KAFKA, FOR_PULSAR, first_for_pulsar
from pybroker.kafka.conversion.entries import kafka_entry
from pybroker.kafka.conversion.to_kafka import for_kafka
from pybroker.kafka.conversion.to_pulsar import for_pulsar
from pybroker.kafka.records import steps
from pybroker.kafka.records.batch import build_batch, header_of
from pybroker.kafka.records.compression import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    compressed,
    decompress,
)
from pybroker.kafka.records.errors import BadRecords
from pybroker.kafka.records.record import Record, write_records
from pybroker.kafka.records.steps import (
    LARGE_BYTES,
    RECORDS_A_STEP,
    Budget,
    apart,
    at_once,
    in_turns,
)
from pybroker.testing import broker

MANY = 4 * RECORDS_A_STEP
WAIT_MS = 30_000


def batch(count: int, name: str = "", codec: int = GZIP) -> bytes:
    records = [Record(at, at, None, f"{name}{at}".encode()) for at in range(count)]
    data = compressed(codec, at_once(write_records(records)))
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
    ours = at_once(for_pulsar(theirs))
    kept, key = (FOR_PULSAR, (theirs,)) if whose == "Pulsar's" else (FOR_KAFKA, (ours, 7, MANY))
    first, second = (asyncio.ensure_future(kept.of(*key)) for _ in range(2))
    assert await turns_during(first) >= MANY // RECORDS_A_STEP
    expected = ours if whose == "Pulsar's" else at_once(for_kafka(ours, 7, MANY))
    assert await first == await second == expected
    assert await turns_during(asyncio.ensure_future(kept.of(*key))) <= 2  # it is known


def test_what_would_take_long_is_left_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted, "_STEPS_AT_ONCE", 4)
    few, many = entry(2, "few"), entry(MANY, "many")
    assert first_for_pulsar([few, many, few]) == [at_once(for_pulsar(few))]
    assert first_for_pulsar([many]) == []
    others = [b"other", few, b"other"]
    assert first_for_pulsar(others) == [b"other", at_once(for_pulsar(few)), b"other"]
    assert FOR_PULSAR.within(Budget(0), few) == at_once(for_pulsar(few))  # it is known


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


# -- large records

CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]


def large(codec: int, value: bytes = b"v") -> bytes:
    """An entry with a large record between two small ones."""
    sizes = 10, LARGE_BYTES + 10, 20
    headers = [("place", b"after the value")]
    records = [Record(at, 0, b"key", value * size, headers) for at, size in enumerate(sizes)]
    data = compressed(codec, at_once(write_records(records)))
    times = {"base_timestamp": 1_000, "max_timestamp": 1_000}
    built = build_batch(data, len(records), len(records) - 1, attributes=codec, **times)
    return kafka_entry(built, header_of(built), 0, 0, 1_000)


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_record_is_compressed_in_a_thread(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, threads = large(codec), []

    def tried(work: Callable[[], Any]) -> Any:
        threads.append(threading.current_thread())
        return _TRIED(work)

    monkeypatch.setattr(steps, "_tried", tried)

    async def there_and_back() -> tuple[bytes, bytes]:
        ours = await FOR_PULSAR.of(theirs)
        return ours, await FOR_KAFKA.of(ours, 0, 3)

    ours, back = asyncio.run(there_and_back())
    assert threads
    assert threading.main_thread() not in threads
    assert ours == at_once(for_pulsar(theirs))
    assert back == at_once(for_kafka(ours, 0, 3))
    assert at_once(for_pulsar(kafka_entry(back, header_of(back), 0, 0, 1_000))) == ours


_TRIED = steps._tried


def test_a_large_record_is_left_for_later() -> None:
    few, one = entry(2, "small"), large(LZ4, b"w")
    assert FOR_PULSAR.within(Budget(1_000), one) is None
    assert first_for_pulsar([few, one, few]) == [at_once(for_pulsar(few))]


def test_what_a_thread_finds_wrong_is_an_error_like_others() -> None:
    size = b"\xff\xff\xff\x07"  # 16 MiB, as snappy writes it
    with pytest.raises(BadRecords, match="do not decompress"):
        asyncio.run(in_turns(decompress(SNAPPY, size + b"no block")))


def test_small_work_is_done_at_once() -> None:
    assert next(_ended(apart(LARGE_BYTES, lambda: 7))) == 7


def _ended(some: Any) -> Any:
    yield (yield from some)


def test_few_long_conversions_take_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most = 0, 0

    async def one_more(some: Any) -> bytes:
        nonlocal now, most
        some.close()
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return b"converted"

    monkeypatch.setattr(converted, "in_turns", one_more)
    entries = [entry(MANY, f"{number} ") for number in range(10)]

    async def all_at_once() -> list[bytes]:
        kept = converted.Converted(for_pulsar, 1)
        return await asyncio.gather(*map(kept.of, entries))

    assert asyncio.run(all_at_once()) == [b"converted"] * 10
    assert most == 2


def test_who_writes_or_reads_many_records_lets_others_work_each_few() -> None:
    records = [Record(at, at, None, b"x") for at in range(MANY)]
    written, turns = write_records(records), 0
    for _ in written:
        turns += 1
    assert MANY // RECORDS_A_STEP <= turns <= MANY // RECORDS_A_STEP + 1
