"""The progress lines about batches, derived from Spark's reports; no Spark."""

import json

from pybroker.base.names import TxnId
from pybroker.spark.offsets import Position
from pybroker.spark.progress import BatchProgress
from pybroker.spark.reading.backlog import Backlog
from pybroker.spark.reading.limits import Sample

SAMPLE = Sample(rows=1000, size_bytes=100_000)


def reported(**entries):
    """The backlog of each partition, as the source reports it."""
    return json.dumps(
        {
            topic: Backlog.of(Position(1, 99), count, SAMPLE, count * 3).to_json()
            for topic, count in entries.items()
        }
    )


def progress(latest, name="ledger", **source):
    return {
        "id": "0f3c9a4e-1111-2222-3333-444455556666",
        "name": name,
        "batchId": 12,
        "durationMs": {"triggerExecution": 8000},
        "sources": [
            {
                "numInputRows": 1_000_000,
                "inputRowsPerSecond": 100_000.0,
                "processedRowsPerSecond": 125_000.0,
                "latestOffset": latest,
                **source,
            }
        ],
    }


def test_a_line_has_rows_bytes_rate_backlog_and_transaction():
    batch = BatchProgress.of(progress(reported(a=3000, b=1000, c=0)), TxnId(3, 17))
    assert batch.line() == (
        "ledger batch 12: 1,000,000 rows, ~100.0 MB, in 8.0 s: 125,000 rows/s; "
        "behind: ~4,000,000 messages, ~400.0 MB in 2 partitions, up to 9 s old; transaction (3,17)"
    )


def test_a_query_at_its_topics_end_says_so():
    assert BatchProgress.of(progress(reported(a=0))).line().endswith("rows/s; caught up")


def test_what_another_source_reports_is_left_out():
    for latest in (None, "null", "17", '{"logOffset": 3}', "no JSON", '{"a": {"last": "1:2"}}'):
        batch = BatchProgress.of(progress(latest, name=None))
        assert batch.line() == "0f3c9a4e batch 12: 1,000,000 rows in 8.0 s: 125,000 rows/s"


def test_rates_that_are_none_count_as_nothing():
    rates = {"inputRowsPerSecond": "NaN", "processedRowsPerSecond": "Infinity"}
    batch = BatchProgress.of(progress(reported(a=1), **rates))
    assert (batch.input_rows_per_second, batch.processed_rows_per_second) == (0.0, 0.0)


def test_a_backlog_comes_back_as_it_was_reported():
    backlog = Backlog.of(Position(4, 7), 12, SAMPLE, 5000)
    assert Backlog.from_json(backlog.to_json()) == backlog
    assert (backlog.messages, backlog.size_bytes) == (12_000, 1_200_000)


def test_a_report_of_an_earlier_version_has_no_age():
    earlier = Backlog.of(Position(4, 7), 12, SAMPLE, 5000).to_json()
    del earlier["backlogAgeMs"]
    assert Backlog.from_json(earlier).age_ms == 0


def test_entries_that_nobody_looked_at_count_as_messages():
    assert Backlog.of(Position(4, 7), 12, None).messages == 12
