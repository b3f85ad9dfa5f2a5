"""The source on scalable topics, whose segments are split, merged and pruned; no Spark."""

import itertools
import json
from collections import Counter
from contextlib import contextmanager

import pytest

from pybroker.base.errors import NotAllowed, TopicNotFound
from pybroker.base.names import any_topic
from pybroker.client import Client
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadAllAvailable
from pybroker.spark.offsets import Position, Span
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.batch import PulsarBatchReader
from pybroker.spark.reading.segments import held_back, without_deleted
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.replay import InputLost
from pybroker.testing import broker

_NUMBERS = itertools.count()
ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def running():
    with broker() as running:
        yield running


class Orders:
    def __init__(self, running, client):
        self.name = f"topic://public/default/spark-{next(_NUMBERS)}"
        self._running = running
        self._key = any_topic(self.name)
        self._client = client
        self._sent = 0
        self._producer = client.create_producer(self.name, batching_enabled=True)

    def publish(self, count=20):
        """Returns the values, whose keys are their last digits."""
        numbers = range(self._sent, self._sent + count)
        self._sent += count
        for number in numbers:
            self._producer.send_async(b"%d" % number, partition_key=str(number % 10))
        self._producer.flush()
        return list(numbers)

    def change(self, work):
        return self._running.call(lambda inside: work(inside.topics.scalable, self._key))

    def split(self, number):
        self.change(lambda scalable, key: scalable.split(key, number))

    def merge(self, one, other):
        self.change(lambda scalable, key: scalable.merge(key, one, other))

    def prune(self):
        return self.change(lambda scalable, key: scalable.pruner.prune_unneeded(key))

    def delete(self):
        self.change(lambda scalable, key: scalable.delete(key, True))

    def options(self, options):
        return {"service.url": self._running.service_url, "topic": self.name} | options

    @contextmanager
    def query(self, **options):
        beginning = {} if "startingTime" in options else {"startingOffsets": "earliest"}
        given = beginning | options
        given = chosen(self.options(given), Mode.READ_STREAM)
        reader = PulsarStreamReader(given, Shape.of(default_schema()))
        try:
            yield Query(reader)
        finally:
            reader.stop()


class Query:
    """A run of a query: batch after batch, each finished before the next is planned."""

    def __init__(self, reader, offset=None):
        self._reader = reader
        self.offset = offset

    def batch(self, limit=None):
        start = self._reader.initialOffset() if self.offset is None else self.offset
        self.offset = self._reader.latestOffset(start, limit or self._reader.getDefaultReadLimit())
        return rows_of(self._reader, self._reader.partitions(start, self.offset))

    def finish(self):
        self._reader.commit(self.offset)

    @property
    def segments(self):
        return sorted(name.rpartition("-")[2] for name in self.offset["spans"])


def rows_of(reader, partitions):
    found = []
    for partition in partitions:
        for rows in reader.read(partition):
            found += zip(rows["__key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    return [(key, int(value)) for key, value in found]


def values(rows):
    return sorted(value for _, value in rows)


@pytest.fixture
def orders(running):
    with Client(running.service_url) as client:
        yield Orders(running, client)


def test_each_message_is_read_once_while_segments_come_and_go(orders):
    published, rows = orders.publish(), []
    with orders.query() as query:
        rows += query.batch()
        assert query.segments == ["0"]
        published += orders.publish()
        orders.split(0)
        published += orders.publish()
        rows += query.batch()
        assert query.segments == ["0", "1", "2"]
        query.finish()
        orders.merge(1, 2)
        published += orders.publish()
        rows += query.batch()
        query.finish()
        assert sorted(orders.prune()) == [0, 1, 2]
        published += orders.publish()
        rows += query.batch()
        assert query.segments == ["3"]
    assert values(rows) == published


def test_a_query_goes_on_from_its_checkpoint_though_segments_are_gone(orders):
    published = orders.publish()
    with orders.query(subscription="s") as query:
        rows = query.batch()
        query.finish()
        offset = query.offset
    orders.split(0)
    assert orders.prune() == [0]
    published += orders.publish()
    with orders.query(subscription="s") as query:
        query.offset = offset
        rows += query.batch()
    assert values(rows) == published


def test_batches_with_limits_keep_the_order_of_each_key(orders):
    published = orders.publish(30)
    orders.split(0)
    published += orders.publish(30)
    orders.split(1)
    orders.merge(4, 2)
    published += orders.publish(30)
    rows = []
    with orders.query(maxEntriesPerTrigger="2") as query:
        for _ in range(100):
            batch = query.batch()
            last = {key: max(v for k, v in rows if k == key) for key in {k for k, _ in rows}}
            assert all(value > last.get(key, -1) for key, value in batch)
            rows += batch
            if len(rows) == len(published):
                break
    assert values(rows) == published


def test_a_query_begins_at_the_end_of_every_segment(orders):
    orders.publish()
    orders.split(0)
    orders.publish()
    with orders.query(startingOffsets="latest") as query:
        assert query.batch() == []
        published = orders.publish()
        orders.split(2)
        published += orders.publish()
        assert values(query.batch()) == published


def test_segments_that_go_with_their_topic_are_a_loss(orders):
    orders.publish()
    with orders.query() as query:
        query.batch()
        orders.delete()
        with pytest.raises((InputLost, TopicNotFound)):
            query.batch(ALL)


def test_a_batch_query_reads_all_segments(orders):
    published = orders.publish()
    orders.split(0)
    published += orders.publish()
    options = chosen(orders.options({}), Mode.READ)
    reader = PulsarBatchReader(options, Shape.of(default_schema()))
    rows = rows_of(reader, reader.partitions())
    assert Counter(values(rows)) == Counter(published)


def test_a_missing_scalable_topic_is_told_in_a_batch_query(running):
    given = {"service.url": running.service_url, "topic": "topic://public/default/nobody"}
    reader = PulsarBatchReader(chosen(given, Mode.READ), Shape.of(default_schema()))
    with pytest.raises(TopicNotFound):
        reader.partitions()


def test_times_are_given_by_the_name_of_the_whole_topic(orders):
    with orders.query(startingTime=json.dumps({orders.name: 0})) as query:
        published = orders.publish()
        assert values(query.batch()) == published
    other = orders.query(startingTime=json.dumps({"topic://public/default/other": 0}))
    with pytest.raises(NotAllowed, match="not among the topics read"), other:
        pass


# -- names and spans


def segment(descriptor, topic="t"):
    return f"segment://public/default/{topic}/{descriptor}"


def test_segments_of_a_topic_that_is_there_are_not_missed():
    gone = [segment("0000-ffff-0"), segment("0000-ffff-0", "u"), "persistent://public/default/v"]
    assert without_deleted(gone, [segment("0000-7fff-1"), "persistent://a/b/w"]) == gone[1:]


def test_children_of_a_segment_that_is_not_read_to_its_end_are_held_back():
    first, to = Position(1, 0), Position(1, 9)
    read, cut = Span(first, to), Span(first, Position(1, 5))
    spans = {
        segment("0000-7fff-1"): cut,
        segment("8000-ffff-2"): read,
        segment("0000-3fff-3"): read,
        segment("c000-ffff-4"): read,
        segment("0000-7fff-0"): read,
        segment("0000-3fff-3", "u"): read,
        "persistent://public/default/t": read,
    }
    held = held_back(spans, dict.fromkeys(spans, to))
    assert held == spans | {segment("0000-3fff-3"): Span(first, first)}
