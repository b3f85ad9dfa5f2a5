"""The sink publishes a row larger than an entry in chunks."""

import random

import pyarrow as pa
import pytest

from pybroker.client import Client, CompressionType, MessageId, MessageTooBig
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading.spans import Reading, read_spans
from pybroker.spark.reading.work import Work
from pybroker.spark.session import Session
from pybroker.spark.writing.entries import EntryEncoder
from pybroker.spark.writing.sending import Sending
from pybroker.testing import broker

LIMIT = 1024 * 1024
LARGE = bytes(range(256)) * (3 * LIMIT // 256 + 1)
VALUES = [b"before", LARGE, b"after"]


@pytest.fixture(scope="module")
def running():
    with broker(max_message_size=LIMIT) as running:
        yield running


def send(running, topic, chunks, compression=CompressionType.NONE, values=VALUES):
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": [topic] * len(values),
            "part": pa.array([0] * len(values), pa.int32()),
            "value": pa.array(values, pa.binary()),
            "key": pa.array([b"k\xff"] * len(values), pa.large_binary()),
            "event_time": pa.array([5] * len(values), pa.int64()),
            "properties": pa.array(
                [[("name", "text")]] * len(values), pa.map_(pa.string(), pa.string())
            ),
        }
    )
    session = Session(Client(running.service_url))
    try:
        with session.client.new_transaction() as txn:
            sending = Sending(session, txn, chunks=chunks)
            encoder = EntryEncoder({topic: [topic]}, compression_type=compression)
            for entry in encoder.encode(rows):
                sending.send(entry)
            sending.settle()
            txn.commit()
    finally:
        session.close()


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZLib])
def test_a_row_above_the_limit_is_one_message_in_its_place(running, compression):
    topic = f"persistent://public/default/large-{compression.name.lower()}"
    noise = LARGE if compression is CompressionType.NONE else _random(3 * LIMIT)
    send(running, topic, True, compression, [b"before", noise, b"after"])
    with Client(running.service_url) as client:
        reader = client.create_reader(topic, MessageId.earliest)
        messages = [reader.read_next(10_000) for _ in range(3)]
    assert [message.data() for message in messages] == [b"before", noise, b"after"]
    assert {message.partition_key() for message in messages} == {"a/8="}
    assert {message.event_timestamp() for message in messages} == {5}
    assert [message.properties() for message in messages] == [{"name": "text"}] * 3


def test_what_the_sink_wrote_in_chunks_the_source_reads(running):
    topic = "persistent://public/default/large-back"
    send(running, topic, True)
    session = Session(Client(running.service_url))
    last = session.last_position(topic)
    session.close()
    reading = Reading(Endpoint(running.service_url), Shape.of(default_schema()))
    work = Work(topic, Span(Position(last.ledger_id, -1), last))
    rows = [row for batch in read_spans(reading, [work]) for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == VALUES
    assert {row["__key"] for row in rows} == {b"k\xff"}


def test_without_chunks_a_row_above_the_limit_is_an_error(running):
    with pytest.raises(MessageTooBig):
        send(running, "persistent://public/default/large-refused", False)


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZLib])
def test_rows_that_fit_are_published_whatever_the_broker_takes_in_one_entry(compression, chunks):
    """The encoder's entries may be larger, because it does not know the broker."""
    limit = 64 * 1024
    topic = "persistent://public/default/small-entries"
    values = [_random(500 + number) for number in range(600)]
    least = 0 if compression is CompressionType.NONE else 64  # random data grows by this
    values += [_random(limit - less) for less in range(least, 200, 20)]
    with broker(max_message_size=limit) as small:
        send(small, topic, chunks, compression, values)
        with Client(small.service_url) as client:
            reader = client.create_reader(topic, MessageId.earliest)
            assert [reader.read_next(10_000).data() for _ in values] == values
            assert not reader.has_message_available()


def _random(size):
    return random.Random(7).randbytes(size)
