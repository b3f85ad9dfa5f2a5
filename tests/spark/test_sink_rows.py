"""The columns of a DataFrame and the parts of a message."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pybroker.base.errors import NotAllowed
from pybroker.spark.writing.rows import rows_of

TOPIC = "persistent://public/default/out"


KINDS = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "timestamp": TimestampType(),
    "decimal": DecimalType(10, 2),
    "map": MapType(StringType(), StringType()),
}


def rows(text, topic=TOPIC):
    schema = StructType()
    for column in text.split(","):
        name, kind = column.split()
        schema.add(name, KINDS[kind])
    return rows_of(schema, topic)


def test_the_connectors_names():
    found = rows(
        "value binary, __key string, __topic string, __eventTime timestamp,"
        "__messageProperties map, __messageId binary, __publishTime timestamp"
    )
    assert (found.is_raw, found.values) == (True, ("value",))
    assert found.parts == {
        "key": "__key",
        "topic": "__topic",
        "event_time": "__eventTime",
        "properties": "__messageProperties",
    }


def test_a_row_may_choose_its_partition():
    assert rows("value binary, partition int").parts == {"partition": "partition"}
    assert rows("id long, __partition long").parts == {"partition": "__partition"}
    assert rows("id long, partition int").values == ("id", "partition")
    with pytest.raises(NotAllowed, match="partition is string; it must be"):
        rows("value binary, partition string")


def test_what_our_source_reads_can_be_written():
    found = rows(
        "key string, value binary, topic string, message_id string, publish_time timestamp,"
        "event_time timestamp, properties map"
    )
    assert found.parts.keys() == {"key", "topic", "event_time", "properties"}


def test_without_a_value_of_bytes_all_columns_are_the_message():
    found = rows("id long, key string, amount decimal, __key string")
    assert (found.is_raw, found.values) == (False, ("id", "key", "amount"))
    assert found.parts == {"key": "__key"}


@pytest.mark.parametrize(
    ("text", "topic", "said"),
    [
        (
            "value string, colour string",
            TOPIC,
            "The column value is the whole message, but there are also colour",
        ),
        ("__key string", TOPIC, "None of the columns __key is the message"),
        ("value string", None, "needs the option topic, or a column __topic"),
        ("value string, key string, __key string", TOPIC, "key and __key are both the key"),
        ("value string, __key int", TOPIC, "__key is int; it must be string or binary"),
        ("value string, __KEY string", TOPIC, "did you mean __key"),
        ("id long, __event_time timestamp", TOPIC, "__event_time is not part.*__eventTime"),
    ],
)
def test_a_frame_that_is_no_message_is_refused(text, topic, said):
    with pytest.raises(NotAllowed, match=said):
        rows(text, topic)


def test_a_row_without_a_topic_is_refused():
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], "__topic": ["t", None]})
    with pytest.raises(NotAllowed, match="A row has no topic"):
        rows("value string, __topic string", None).columns(batch, 0, batch.column("value"))


def test_a_time_shortly_before_1970_is_not_taken_for_none():
    stamps = pa.array([-1, -1000, -1001, None, 0, 999], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array(list("abcdef")), stamps], ["value", "__eventTime"])
    columns = rows("value string, __eventTime timestamp").columns(batch, 0, batch.column("value"))
    assert columns.column("event_time").to_pylist() == [-1, -1, -2, None, 0, 0]


def test_times_are_milliseconds_whatever_they_were():
    stamps = pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), stamps], ["value", "__eventTime"])
    columns = rows("value string, __eventTime timestamp").columns(batch, 3, batch.column("value"))
    assert columns.column("event_time").to_pylist() == [1_700_000_000_123, None]
    assert columns.column("part").to_pylist() == [3, 3]


@pytest.mark.parametrize("name", ["VALUE", "Value"])
@pytest.mark.parametrize("others", ["", ",__key string", ",other int", ",value binary"])
def test_a_value_under_another_case_is_not_silently_a_field_of_a_record(name, others):
    with pytest.raises(NotAllowed, match=f"Is the column {name} the message.* name it value"):
        rows(f"{name} string{others}")


def test_a_value_that_is_no_text_is_a_field_in_any_case():
    assert rows("VALUE decimal, other int").values == ("VALUE", "other")
