"""How `exactly_once` handles the DataFrames that `write` returns; with Spark, without a broker."""

import pytest
from pyspark.sql import functions as F

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.client import BatchingType
from pybroker.spark.publish import message_columns, publish_outputs
from pybroker.spark.writing.attempt import Job
from pybroker.spark.writing.notes import NoteBook
from pybroker.wire.single_messages import split_batch

pytestmark = pytest.mark.spark

OUT = "persistent://public/default/out"
JOB = Job(print, TxnId(0, 1), NoteBook("control", "query"), 1000, max_driver_bytes=None)

# The names of the source's columns.
READ = """
    select x'76' `value`, x'ff6b' `__key`, '{topic}' `__topic`, x'00' `__messageId`,
      timestamp '2024-01-01 00:00:00 UTC' `__eventTime`, current_timestamp() `__publishTime`,
      map('colour', 'red') `__messageProperties`
"""


def published(frame):
    [entry] = [
        entry
        for written in publish_outputs({OUT: frame}, {OUT: [OUT]}, JOB, 0)
        for entry in written.entries
    ]
    assert entry.topic == OUT
    return list(split_batch(entry.batch.payload, entry.batch.message_count))


def test_a_batch_that_is_published_as_it_was_read_keeps_keys_times_and_properties(spark):
    [(single, content)] = published(spark.sql(READ.format(topic="elsewhere")))
    assert content == b"v"
    assert (single.partition_key, single.partition_key_b64_encoded) == ("/2s=", True)
    assert single.event_time == 1_704_067_200_000
    assert [(pair.key, pair.value) for pair in single.properties] == [("colour", "red")]


def test_the_plain_names_do_as_well_and_numbers_are_milliseconds(spark):
    frame = spark.sql("select 'v' value, 'k' key, 5L event_time, map('a', 'b') properties")
    [(single, content)] = published(frame)
    assert (content, single.partition_key, single.event_time) == (b"v", "k", 5)


def test_a_column_that_is_no_part_of_a_message_is_refused(spark):
    frame = spark.sql("select 'v' value, 'k' `Key`")
    with pytest.raises(
        NotAllowed, match=r"The column value is the whole message, but there are also Key"
    ):
        published(frame)


def test_an_output_without_a_value_of_text_or_bytes_is_refused(spark):
    frame = spark.range(1).select(F.col("id").alias("value"))
    with pytest.raises(NotAllowed, match="no string or binary column 'value'"):
        published(frame)


def test_outputs_with_other_columns_each_keep_their_own(spark):
    other = "persistent://public/default/other"
    outputs = {
        OUT: spark.sql("select 'v' value, 'k' key"),
        other: spark.sql("select 'w' value, map('a', 'b') properties, 5L event_time"),
    }
    written = publish_outputs(outputs, {OUT: [OUT], other: [other]}, JOB, 0)
    entries = {entry.topic: entry.batch for each in written for entry in each.entries}
    [(single, content)] = split_batch(entries[OUT].payload, 1)
    assert (content, single.partition_key, len(single.properties)) == (b"v", "k", 0)
    assert not single.HasField("event_time")
    [(single, content)] = split_batch(entries[other].payload, 1)
    assert (content, single.event_time, len(single.properties)) == (b"w", 5, 1)
    assert not single.HasField("partition_key")


def test_a_row_goes_to_the_partition_that_it_names(spark):
    frame = spark.sql("select string(id) value, id % 2 __partition from range(4)").coalesce(1)
    partitions = {OUT: [f"{OUT}-partition-{number}" for number in range(2)]}
    written = publish_outputs({OUT: frame}, partitions, JOB, 0)
    found = {entry.topic[-1]: entry.batch.message_count for entry in written[0].entries}
    assert found == {"0": 2, "1": 2}


def test_key_based_entries_say_their_key(spark):
    frame = spark.sql("select string(id) value, string(id % 3) key from range(30)").coalesce(1)
    written = publish_outputs({OUT: frame}, {OUT: [OUT]}, JOB, 0, BatchingType.KeyBased)
    counted = {entry.batch.partition_key: entry.batch.message_count for entry in written[0].entries}
    assert counted == {"0": 10, "1": 10, "2": 10}


def test_a_row_without_properties_beside_one_that_has_some_has_none(spark):
    frame = spark.sql(
        "select '1' value, null properties union all select '2', map('a', null) union all "
        "select '3', map('a', 'b')"
    ).coalesce(1)
    found = [[(p.key, p.value) for p in single.properties] for single, _ in published(frame)]
    assert found == [[], [], [("a", "b")]]


def test_spark_fills_no_column_that_no_output_has(spark):
    """For nulls in a column of maps, Spark needs time quadratic in a batch's rows."""
    plain = spark.sql("select 'v' value")
    assert message_columns({OUT: plain}).columns == ["topic", "part", "value"]
