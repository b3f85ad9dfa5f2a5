"""The protocol against a model of Spark, from seeds; and incorrect protocols that the model
detects.
"""

import logging
import sys

import pytest
import spark_model
from spark_model import Wrong

from pybroker.base.errors import PulsarError
from pybroker.client import TransactionAborted
from pybroker.spark.chain import Chain, Link
from pybroker.spark.decision import TABLE, Cursors, Decision, Evidence
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import Position, SourceOffset, Span
from pybroker.spark.reading.stream import PulsarStreamReader, SpanPartition
from pybroker.spark.reading.work import Work
from pybroker.spark.transactional import ExactlyOnce

SINK = sys.modules[ExactlyOnce.__module__]
SEEDS = range(120)
SEEDS_FOR_A_BUG = range(400)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("pybroker.spark").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("pybroker.spark").setLevel(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::20])
def test_each_row_is_published_once_whatever_dies(first):
    worlds = [spark_model.run(seed) for seed in range(first, first + 20)]
    assert sum(world.deaths for world in worlds) > 20
    assert sum(world.skips for world in worlds) > 20


@pytest.mark.slow
def test_no_batch_is_passed_over_in_silence_when_cursors_are_moved():
    worlds = [spark_model.run_meddled_with(seed) for seed in SEEDS]
    assert sum(world.refusals for world in worlds) > 100


def test_the_model_catches_a_protocol_that_takes_a_cursor_for_output(monkeypatch):
    believed = {
        **TABLE[Cursors.PAST],
        Evidence.PRECEDING: Decision.SKIP,
        Evidence.ABSENT: Decision.SKIP,
    }
    monkeypatch.setitem(TABLE, Cursors.PAST, believed)
    with pytest.raises(Wrong, match="Spark has"):
        for seed in SEEDS_FOR_A_BUG:
            spark_model.run_meddled_with(seed)


def reads_the_first_batch_from_the_cursor(monkeypatch):
    def partitions(self, start, end):
        before = SourceOffset.from_json(start).spans
        ends = SourceOffset.from_json(end).spans
        spans = [(topic, Span(before[topic].to, span.to)) for topic, span in ends.items()]
        return [SpanPartition(Work(topic, span)) for topic, span in spans if not span.is_empty]

    monkeypatch.setattr(PulsarStreamReader, "partitions", partitions)


def believes_the_control_topics_last_marker(monkeypatch):
    find = Chain._find

    def last(self, session):
        found = find(self, session)
        everything = list(session.read_to_end(self._topic(session), Position(-1, -1)))
        if not everything:
            return found
        position, data = everything[-1]
        marker = Marker.from_bytes(data)
        own = marker if marker.query_id == self._query_id else Marker.opening(self._query_id)
        return Link(own, position)

    monkeypatch.setattr(Chain, "_find", last)


def keeps_no_rows_for_a_replay(monkeypatch):
    monkeypatch.setattr(SINK, "keep_input", lambda session, progress, kept: {})
    monkeypatch.setattr(SINK, "require_input", lambda *_: None)


def does_not_evaluate_what_it_skips(monkeypatch):
    monkeypatch.setattr(SINK, "evaluate", lambda batch: None)


def does_not_fence_by_markers(monkeypatch):
    monkeypatch.setattr(Chain, "acknowledge", lambda self, session, txn: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        reads_the_first_batch_from_the_cursor,
        believes_the_control_topics_last_marker,
        keeps_no_rows_for_a_replay,
        does_not_evaluate_what_it_skips,
        does_not_fence_by_markers,
    ],
)
def test_the_model_catches_a_protocol_that(monkeypatch, bug):
    bug(monkeypatch)
    with pytest.raises((Wrong, PulsarError, TransactionAborted, KeyError)) as caught:
        for seed in SEEDS_FOR_A_BUG:
            spark_model.run(seed)
    print(f"{bug.__name__}: seed {seed}: {caught.value}")
