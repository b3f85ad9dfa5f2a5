import json

import pytest

from pybroker.base.names import TxnId
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import (
    EARLIEST,
    UNTOLD,
    CursorName,
    Position,
    SourceOffset,
    Span,
    is_pulsar_offset,
)

TOPIC = "persistent://public/default/t-partition-0"
OTHER = "persistent://public/default/t-partition-1"
OFFSET = SourceOffset(
    "ledger",
    {
        TOPIC: Span(Position(3, -1), Position(3, 9)),
        OTHER: Span(Position(4, 2), Position(4, 2)),
    },
)


def test_an_offset_survives_sparks_json():
    text = json.dumps(OFFSET.to_json())
    assert SourceOffset.from_json(json.loads(text)) == OFFSET


def test_partitions_without_news_are_no_progress():
    assert OFFSET.progress() == {CursorName(TOPIC, "ledger"): OFFSET.spans[TOPIC]}


def test_other_sources_offsets_are_told_apart():
    assert is_pulsar_offset(OFFSET.to_json())
    assert not is_pulsar_offset({"t": {"0": 17}})
    assert not is_pulsar_offset(17)


def test_a_marker_says_what_each_subscription_has_read():
    kept = {CursorName(OTHER, "ledger"): Position(4, 0)}
    marker = Marker("query", 7, TxnId(2, 40), OFFSET.progress(), "digest", kept)
    assert Marker.from_bytes(marker.to_bytes()) == marker
    fields = json.loads(marker.to_bytes())
    assert fields["ends"] == {"ledger": {TOPIC: "3:9"}}
    assert fields["starts"] == {"ledger": {TOPIC: "3:-1"}}
    assert (fields["query_id"], fields["batch_id"], fields["txn_id"]) == ("query", 7, [2, 40])


def test_a_marker_of_an_earlier_version_is_read():
    marker = Marker("query", 7, TxnId(2, 40), OFFSET.progress())
    fields = json.loads(marker.to_bytes())
    del fields["sources"], fields["kept"]
    assert Marker.from_bytes(json.dumps(fields).encode()) == marker


@pytest.mark.parametrize("data", [b"", b"no JSON", b"[]", b"{}", b'{"starts": 3}', b'"text"'])
def test_what_is_no_marker_is_told_so(data):
    with pytest.raises(ValueError):
        Marker.from_bytes(data)


def test_a_cursor_that_the_source_moves_is_no_fence_for_a_sink():
    offset = SourceOffset("mine", OFFSET.spans, {}, follows=True)
    assert SourceOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert not is_pulsar_offset(offset.to_json())


def test_a_span_without_a_beginning_begins_where_the_batch_before_ended():
    untold = SourceOffset("ledger", {TOPIC: Span(UNTOLD, Position(3, 20))})
    offset = untold.to_json()
    assert is_pulsar_offset(offset)
    assert SourceOffset.from_json(offset, OFFSET.to_json()).spans == {
        TOPIC: Span(Position(3, 9), Position(3, 20))
    }
    assert SourceOffset.from_json(offset).spans == {TOPIC: Span(EARLIEST, Position(3, 20))}
