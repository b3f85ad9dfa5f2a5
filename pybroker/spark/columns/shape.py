"""Which columns a query wants, and what each is made of.

The metadata columns are the pulsar-spark connector's, names and types; ours are beside them under
the names that they had before, and a query that wants those says so: `.schema("key string, …")`.
Only what is wanted is made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pybroker.errors import NotAllowed
from pybroker.names import TopicName
from pybroker.spark.columns.arrays import binaries, maps, message_ids, repeated_text, texts, times
from pybroker.spark.columns.keys import keys
from pybroker.spark.columns.slab import Slab


@dataclass(frozen=True, slots=True)
class Column:
    type: DataType
    arrow: pa.DataType
    make: Callable[[Slab, TopicName], pa.Array]


def _value(slab: Slab, topic: TopicName) -> pa.Array:
    return binaries(slab.data, slab.value)


def _key(slab: Slab, topic: TopicName) -> pa.Array:
    return keys(slab)


def _key_text(slab: Slab, topic: TopicName) -> pa.Array:
    return texts(slab.data, slab.key)


def _topic(slab: Slab, topic: TopicName) -> pa.Array:
    return repeated_text(str(topic), slab.rows)


def _message_id(slab: Slab, topic: TopicName) -> pa.Array:
    return message_ids(slab.ledger, slab.entry, topic.partition, slab.batch_index, slab.batch_size)


def _message_id_text(slab: Slab, topic: TopicName) -> pa.Array:
    parts = (pa.array(each).cast(pa.string()) for each in (slab.ledger, slab.entry))
    return pc.binary_join_element_wise(*parts, pa.array(slab.batch_index).cast(pa.string()), ":")


def _publish_time(slab: Slab, topic: TopicName) -> pa.Array:
    return times(slab.publish_time_ms)


def _event_time(slab: Slab, topic: TopicName) -> pa.Array:
    return times(slab.event_time_ms, slab.event_time_ms > 0)


def _properties(slab: Slab, topic: TopicName) -> pa.Array:
    return maps(slab.data, slab.properties, slab.rows)


_ARROW_TIME: Final = pa.timestamp("us", "UTC")
_ARROW_MAP: Final = pa.map_(pa.string(), pa.string())
_MAP: Final = MapType(StringType(), StringType())

VALUE: Final = Column(BinaryType(), pa.binary(), _value)
METADATA: Final = {
    "__key": Column(BinaryType(), pa.binary(), _key),
    "__topic": Column(StringType(), pa.string(), _topic),
    "__messageId": Column(BinaryType(), pa.binary(), _message_id),
    "__publishTime": Column(TimestampType(), _ARROW_TIME, _publish_time),
    "__eventTime": Column(TimestampType(), _ARROW_TIME, _event_time),
    "__messageProperties": Column(_MAP, _ARROW_MAP, _properties),
}
# What earlier versions of ours called them.
_OURS: Final = {
    "key": Column(StringType(), pa.string(), _key_text),
    "topic": METADATA["__topic"],
    "message_id": Column(StringType(), pa.string(), _message_id_text),
    "publish_time": METADATA["__publishTime"],
    "event_time": METADATA["__eventTime"],
    "properties": METADATA["__messageProperties"],
}
_KNOWN: Final = {"value": VALUE} | METADATA | _OURS


def default_schema() -> StructType:
    """Of a topic whose values are bytes."""
    return StructType(
        [StructField("value", VALUE.type)]
        + [StructField(name, column.type) for name, column in METADATA.items()]
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that a query reads, in its order. Travels to executors by their names."""

    names: Sequence[str]

    @classmethod
    def of(cls, schema: StructType) -> "Shape":
        """Raises NotAllowed."""
        for field in schema.fields:
            column = _KNOWN.get(field.name)
            if column is None:
                raise NotAllowed(f"There is no column {field.name}; there are {', '.join(_KNOWN)}")
            if column.type != field.dataType:
                raise NotAllowed(
                    f"The column {field.name} is {column.type.simpleString()}, and was asked for "
                    f"as {field.dataType.simpleString()}"
                )
        return cls(tuple(schema.fieldNames()))

    def batch(self, slab: Slab, topic: TopicName) -> pa.RecordBatch:
        columns = [_KNOWN[name] for name in self.names]
        fields: Any = [
            (name, column.arrow) for name, column in zip(self.names, columns, strict=True)
        ]
        arrays = [column.make(slab, topic) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
