"""Rows of 100 bytes that begin with their number; written and counted by columns."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pybroker.client import Client, InitialPosition
from pybroker.demo.topics import create_partitioned
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import EARLIEST, Span
from pybroker.spark.reading.spans import Reading, read_span
from pybroker.spark.reading.work import Work
from pybroker.spark.session import Session
from pybroker.spark.writing import byte_columns
from pybroker.spark.writing.entries import EntryEncoder
from pybroker.testing.broker_process import BrokerProcess

ROW_BYTES: Final = 100
_DIGITS: Final = 10
_AT_A_TIME: Final = 100_000
_WAITING: Final = 64


def fill(broker: BrokerProcess, topic: str, rows: int, partitions: int) -> None:
    """Publish rows in batches of up to 1000 to all partitions; subscription `keep` keeps them."""
    create_partitioned(broker.admin_url, topic, partitions)
    with Client(broker.service_url) as client:
        keep(client, topic)
        names = client.get_topic_partitions(topic)
        producers = {
            name: client.create_producer(
                name, max_pending_messages=_WAITING, block_if_queue_full=True
            )
            for name in names
        }
        encoder = EntryEncoder({topic: names})
        for first in range(0, rows, _AT_A_TIME):
            for entry in encoder.encode(_batch(topic, first, min(_AT_A_TIME, rows - first))):
                producers[entry.topic].send_batch_async(entry.batch, _require_sent)
        for producer in producers.values():
            producer.flush()


def keep(client: Client, topic: str) -> None:
    client.subscribe(topic, "keep", initial_position=InitialPosition.Earliest).close()


def _require_sent(result: object, message_id: object) -> None:
    assert not isinstance(result, BaseException), result


def _batch(topic: str, first: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count, dtype=np.int64)
    rows = np.full((count, ROW_BYTES), ord("x"), np.uint8)
    for digit in range(_DIGITS):
        rows[:, _DIGITS - 1 - digit] = ord("0") + numbers // 10**digit % 10
    nothing = pa.nulls(count)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([topic] * count),
            "part": pa.array(np.zeros(count, np.int64)),
            "value": byte_columns.of_matrix(rows),
            "key": nothing.cast(pa.string()),
            "event_time": nothing.cast(pa.int64()),
            "properties": nothing.cast(pa.map_(pa.string(), pa.string())),
        }
    )


def times_seen(broker: BrokerProcess, topic: str, rows: int) -> npt.NDArray[np.int64]:
    """The count of each number among the committed rows."""
    seen = np.zeros(rows, np.int64)
    for values in _values(broker, topic):
        matrix = values.reshape(-1, ROW_BYTES)[:, :_DIGITS].astype(np.int64) - ord("0")
        numbers = matrix @ (10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64))
        seen += np.bincount(numbers, minlength=rows)
    return seen


def _values(broker: BrokerProcess, topic: str) -> Iterator[npt.NDArray[np.uint8]]:
    endpoint = Endpoint(broker.service_url)
    schema = default_schema()
    reading = Reading(endpoint, Shape.of(type(schema)([schema["value"]])))
    session = Session(endpoint.connect())
    try:
        ends = {name: session.last_position(name) for name in session.partitions(topic)}
    finally:
        session.close()
    for name, last in ends.items():
        for batch in read_span(reading, Work(name, Span(EARLIEST, last))):
            column = byte_columns.of(batch.column(0))
            places = byte_columns.offsets(column)
            yield np.frombuffer(byte_columns.data(column), np.uint8)[places[0] : places[-1]]
