"""The reads that remain with filters: planned as Spark does, with a broker in this process."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest
from raw_client import RawClient

from pybroker.base.runtime import SystemClock
from pybroker.client import Client, InitialPosition, encode_batch
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.offsets import EARLIEST
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.batch import PulsarBatchReader
from pybroker.spark.reading.filters import Narrowing
from pybroker.spark.schemas.values import TopicSchema
from pybroker.spark.session import Session
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/filtered"
NOON_MS = 1_700_000_000_000
MINUTE_MS = 60_000


@dataclass(frozen=True)
class EqualTo:
    """These classes have the names of Spark's filters; PySpark 4.0 has none."""

    attribute: tuple[str, ...]
    value: Any


class In(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class LessThanOrEqual(EqualTo):
    pass


class StringEndsWith(EqualTo):
    pass


@dataclass(frozen=True)
class Not:
    child: Any


def time(ms):
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


@pytest.fixture
def client(pulsar_broker):
    with Client(pulsar_broker.service_url) as client:
        client.subscribe(TOPIC, "keep", initial_position=InitialPosition.Earliest).close()
        yield client


@pytest.fixture
def reader(pulsar_broker):
    def reader(*filters, **options):
        given = {"service.url": pulsar_broker.service_url} | options
        given |= {} if "topics" in options else {"topic": TOPIC}
        made = PulsarBatchReader(chosen(given, Mode.READ), Shape.of(default_schema()))
        assert list(made.pushFilters(filters)) == list(filters)
        return made

    return reader


def rows(reader):
    return [
        row
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


def numbers(reader):
    return [int(row["value"]) for row in rows(reader)]


def publish(client, monkeypatch, times_ms, topic=TOPIC):
    """Publish an entry with its number at each of the times."""
    producer = client.create_producer(topic)
    for number, time_ms in enumerate(times_ms):
        monkeypatch.setattr(SystemClock, "now_ms", lambda self, time_ms=time_ms: time_ms)
        producer.send_batch(encode_batch([b"%d" % number]))
    monkeypatch.undo()


def test_only_the_entry_of_an_id_is_read(client, reader, monkeypatch):
    publish(client, monkeypatch, [NOON_MS] * 20)
    place = rows(reader())[7]["__messageId"]
    assert numbers(reader(EqualTo(("__messageId",), place))) == [7]
    others = rows(reader())[3]["__messageId"]
    assert numbers(reader(In(("__messageId",), (place, others, None)))) == [3, 4, 5, 6, 7]
    assert numbers(reader(EqualTo(("__messageId",), b"no id"))) == []


def test_only_entries_near_the_publish_times_are_read(client, reader, monkeypatch):
    publish(client, monkeypatch, [NOON_MS + n * MINUTE_MS for n in range(60)])
    later = GreaterThan(("__publishTime",), time(NOON_MS + 40 * MINUTE_MS))
    earlier = LessThanOrEqual(("__publishTime",), time(NOON_MS + 45 * MINUTE_MS))
    near = {"publishTimeDisorderMs": str(2 * MINUTE_MS)}
    assert numbers(reader(later, **near)) == list(range(38, 60))
    assert numbers(reader(earlier, **near)) == list(range(48))
    assert numbers(reader(later, earlier, **near)) == list(range(38, 48))
    assert numbers(reader(later, earlier)) == list(range(60))


@pytest.mark.slow
def test_no_message_is_missed_that_is_out_of_order_within_the_limit(client, reader, monkeypatch):
    times = [NOON_MS + (n + (9 if n % 10 == 0 else 0)) * MINUTE_MS for n in range(100)]
    publish(client, monkeypatch, times)
    near = {"publishTimeDisorderMs": str(9 * MINUTE_MS)}
    for wanted in range(NOON_MS, NOON_MS + 110 * MINUTE_MS, 7 * MINUTE_MS):
        found = numbers(reader(EqualTo(("__publishTime",), time(wanted)), **near))
        assert {n for n, at in enumerate(times) if at == wanted} <= set(found)


@pytest.fixture
def unfinished(client, pulsar_broker):
    """Two messages, and the first chunk of a message whose producer died."""
    with RawClient(pulsar_broker.service_url) as raw:
        raw.create_producer(TOPIC)
        raw.publish(b"0", 0, publish_time=NOON_MS)
        raw.publish(b"1", 1, publish_time=NOON_MS + 1000)
        chunk = {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
        raw.publish(b"2", 2, publish_time=NOON_MS + 2000, **chunk)


@pytest.mark.usefixtures("unfinished")
def test_a_topic_that_ends_with_an_incomplete_message_is_read_to_its_end(client, reader):
    near = {"publishTimeDisorderMs": "1"}
    for ms, later, earlier in ((-10, [0, 1], []), (500, [1], [0]), (1500, [], [0, 1])):
        at = time(NOON_MS + ms)
        assert numbers(reader(GreaterThan(("__publishTime",), at), **near)) == later
        assert numbers(reader(LessThanOrEqual(("__publishTime",), at), **near)) == earlier
    found = [data for _, data in Session(client).read_to_end(TOPIC, EARLIEST)]
    assert found == [b"0", b"1"]


def test_times_far_beyond_any_message_narrow_nothing(client, reader, monkeypatch):
    publish(client, monkeypatch, [NOON_MS])
    far = {"publishTimeDisorderMs": str(10**20)}
    assert numbers(reader(LessThanOrEqual(("__publishTime",), time(NOON_MS)), **far)) == [0]
    assert numbers(reader(endingTime=str(10**20))) == [0]


def test_only_the_topics_that_are_named_are_read(client, reader, monkeypatch):
    other = f"{TOPIC}-other"
    client.subscribe(other, "keep").close()
    for topic in (TOPIC, other):
        publish(client, monkeypatch, [NOON_MS], topic)
    named = EqualTo(("__topic",), other)

    def topics(each):
        plan = reader(each, topics=f"{TOPIC},{other}").partitions()
        return [task.works[0].topic for task in plan]

    for each in (named, StringEndsWith(("__topic",), "-other"), In(("__topic",), (other, None))):
        assert topics(each) == [other]
    assert topics(Not(named)) == [TOPIC, other]


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("__messageProperties", "a"), "b"),
        EqualTo(("__key",), b"k"),
        Not(EqualTo(("__topic",), "x")),
        GreaterThan(("__topic",), "x"),
        GreaterThan(("__messageId",), b""),
        EqualTo(("__publishTime",), dt.datetime(2024, 1, 1)),
        In(("__publishTime",), (None,)),
    ],
)
def test_what_says_nothing_of_places_narrows_nothing(each):
    assert Narrowing.of([each], {"__messageId", "__topic", "__publishTime"}) == Narrowing()


def test_a_field_of_the_topics_schema_is_no_metadata():
    data = b'{"type":"record","name":"R","fields":[{"name":"topic","type":"string"}]}'
    schema = TopicSchema(pb.Schema.Avro, data)
    shape = Shape.of(default_schema(schema), schema)
    assert shape.of_value() == {"topic"}
