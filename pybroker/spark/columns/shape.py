"""The columns that a query may request, and how each is made.

The metadata columns have the pulsar-spark connector's names and types. This package's older names
are also available; a query asks for them with `.schema("key string, …")`. Only requested columns
are built.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TopicName
from pybroker.spark.columns.arrays import (
    binaries,
    byte_strings,
    maps,
    message_ids,
    repeated_text,
    texts,
    times,
    vector,
)
from pybroker.spark.columns.fields import Ints
from pybroker.spark.columns.keys import keys
from pybroker.spark.columns.slab import Slab
from pybroker.spark.schemas.values import TopicSchema, Versions, values


@dataclass(frozen=True, slots=True)
class Origin:
    """The topic of each row of a slab, as an index into `topics`."""

    topics: Sequence[TopicName]
    of_row: Ints

    @classmethod
    def one(cls, topic: TopicName, slab: Slab) -> "Origin":
        return cls((topic,), np.zeros(slab.rows, np.int64))


@dataclass(frozen=True, slots=True)
class Column:
    type: DataType
    arrow: pa.DataType
    make: Callable[[Slab, Origin], pa.Array]


def _value(slab: Slab, origin: Origin) -> pa.Array:
    return binaries(slab.data, slab.value)


def _key(slab: Slab, origin: Origin) -> pa.Array:
    return keys(slab.data, slab.key, slab.key_is_base64)


def _key_text(slab: Slab, origin: Origin) -> pa.Array:
    return texts(slab.data, slab.key)


def _topic(slab: Slab, origin: Origin) -> pa.Array:
    if len(origin.topics) == 1:
        return repeated_text(str(origin.topics[0]), slab.rows)
    names = byte_strings([str(topic).encode() for topic in origin.topics])
    return names.cast(pa.string()).take(vector(origin.of_row))


def _message_id(slab: Slab, origin: Origin) -> pa.Array:
    partition = np.array([each.partition for each in origin.topics], np.int64)[origin.of_row]
    return message_ids(slab.ledger, slab.entry, partition, slab.batch_index, slab.batch_size)


def _message_id_text(slab: Slab, origin: Origin) -> pa.Array:
    import pyarrow.compute as pc

    parts = (vector(each).cast(pa.string()) for each in (slab.ledger, slab.entry))
    return pc.binary_join_element_wise(*parts, vector(slab.batch_index).cast(pa.string()), ":")


def _publish_time(slab: Slab, origin: Origin) -> pa.Array:
    return times(slab.publish_time_ms)


def _event_time(slab: Slab, origin: Origin) -> pa.Array:
    return times(slab.event_time_ms, slab.event_time_ms > 0)


def _properties(slab: Slab, origin: Origin) -> pa.Array:
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
# The names that columns had in earlier versions of this package.
_OURS: Final = {
    "key": Column(StringType(), pa.string(), _key_text),
    "topic": METADATA["__topic"],
    "message_id": Column(StringType(), pa.string(), _message_id_text),
    "publish_time": METADATA["__publishTime"],
    "event_time": METADATA["__eventTime"],
    "properties": METADATA["__messageProperties"],
}
_KNOWN: Final = {"value": VALUE} | METADATA | _OURS


def default_schema(topic_schema: TopicSchema | None = None) -> StructType:
    """The columns of a topic's schema, and the metadata. Raises NotAllowed."""
    typed = topic_schema if topic_schema is not None and topic_schema.is_typed else None
    first = typed.fields() if typed else [StructField("value", VALUE.type)]
    return StructType(first + [StructField(name, column.type) for name, column in METADATA.items()])


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that a query reads, in order. Pickled to executors by name.

    `topic_schema`: how to decode values, if any of their columns is requested.
    """

    names: Sequence[str]
    topic_schema: TopicSchema | None = None

    @classmethod
    def of(cls, schema: StructType, topic_schema: TopicSchema | None = None) -> "Shape":
        """Raises NotAllowed for a column that does not exist or has another type."""
        typed = topic_schema if topic_schema is not None and topic_schema.is_typed else None
        of_value = {each.name: each.dataType for each in typed.fields()} if typed else {}
        known = {name: column.type for name, column in _KNOWN.items()} | of_value
        for field in schema.fields:
            if field.name not in known:
                raise NotAllowed(
                    f"There is no column {field.name}; the columns are {', '.join(known)}"
                )
            if known[field.name] != field.dataType:
                raise NotAllowed(
                    f"The column {field.name} is {known[field.name].simpleString()}, but the "
                    f"requested schema has {field.dataType.simpleString()}"
                )
        names = tuple(schema.fieldNames())
        return cls(names, topic_schema if of_value.keys() & set(names) else None)

    def of_value(self) -> frozenset[str]:
        """The columns that are fields of the topic's schema."""
        schema = self.topic_schema
        return frozenset(each.name for each in schema.fields()) if schema else frozenset()

    def batch(
        self, slab: Slab, origin: Origin, versions: Versions = lambda version: None
    ) -> pa.RecordBatch:
        made = values(slab, self.topic_schema, versions) if self.topic_schema else {}
        arrays = [
            made[name] if name in made else _KNOWN[name].make(slab, origin) for name in self.names
        ]
        fields: Any = [
            (name, made[name].type if name in made else _KNOWN[name].arrow) for name in self.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
