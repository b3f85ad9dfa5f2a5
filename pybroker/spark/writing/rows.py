"""A DataFrame's columns, and the part of a message that each of them is.

The names are the pulsar-spark connector's: `__topic`, `__key`, `__eventTime` and
`__messageProperties`; `__messageId` and `__publishTime`, which readers add, are ignored. As with
Kafka's sink, `__partition` chooses a row's partition. A column `value` of strings or bytes is the
message, and the plain names `topic`, `key`, `event_time`, `properties` and `partition` are then
accepted as well. Without a column `value`, all others together are the
message.

The option `topic` takes precedence over a column of that name, as everywhere in Spark.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pybroker.base.errors import NotAllowed
from pybroker.spark.writing.local_times import Microseconds, utc_us

_VALUE: Final = "value"
_TEXT: Final = (StringType, BinaryType)
_TIME: Final = (TimestampType, TimestampNTZType, LongType)
_KINDS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "key": _TEXT,
    "event_time": _TIME,
    "properties": (MapType,),
    "partition": (ByteType, ShortType, IntegerType, LongType),
}
_CONNECTORS: Final = {
    "__topic": "topic",
    "__key": "key",
    "__eventTime": "event_time",
    "__messageProperties": "properties",
    "__partition": "partition",
}
# Other columns that sources return.
_READ_ONLY: Final = ("__messageId", "__publishTime")
_READ_ONLY_OF_OURS: Final = ("message_id", "publish_time")
# What EntryEncoder always needs. It takes a column `partition` of int64 as well.
ARROW_TYPES: Final = {
    "topic": pa.string(),
    "key": pa.large_binary(),
    "event_time": pa.int64(),
    "properties": pa.map_(pa.string(), pa.string()),
}


class Rows(NamedTuple):
    """The columns of a DataFrame that hold a message's parts; pickled to executors."""

    topic: str | None
    # Part of a message -> the column that has it.
    parts: Mapping[str, str]
    # The columns that are the message: `value` alone, or those of a record.
    values: tuple[str, ...]
    is_raw: bool

    def columns(
        self, batch: pa.RecordBatch, part: int, value: pa.Array, time_zone: str | None = None
    ) -> pa.RecordBatch:
        """The rows as EntryEncoder expects them. Raises NotAllowed for a row without a topic.

        `time_zone`: the session's, for event times that have none.
        """
        count = batch.num_rows
        arrays = {
            "topic": self._topics(batch),
            "part": pa.array(np.full(count, part, np.int32)),
            "value": value,
            "key": self._part(batch, "key"),
            "event_time": self._event_times(batch, time_zone),
            "properties": self._part(batch, "properties"),
        }
        if "partition" in self.parts:
            arrays["partition"] = batch.column(self.parts["partition"]).cast(pa.int64())
        return pa.RecordBatch.from_pydict(arrays)

    def _topics(self, batch: pa.RecordBatch) -> pa.Array:
        if self.topic is not None:
            indices = pa.array(np.zeros(batch.num_rows, np.int32))
            return pa.DictionaryArray.from_arrays(indices, pa.array([self.topic]))
        topics = batch.column(self.parts["topic"])
        if topics.null_count:
            raise NotAllowed(f"A row has no topic: its column {self.parts['topic']} is null")
        return topics.cast(pa.string()).dictionary_encode()

    def _part(self, batch: pa.RecordBatch, part: str) -> pa.Array:
        if part not in self.parts:
            return pa.nulls(batch.num_rows, ARROW_TYPES[part])
        return batch.column(self.parts[part]).cast(ARROW_TYPES[part])

    def _event_times(self, batch: pa.RecordBatch, time_zone: str | None) -> pa.Array:
        if "event_time" not in self.parts:
            return pa.nulls(batch.num_rows, pa.int64())
        times = batch.column(self.parts["event_time"])
        if pa.types.is_timestamp(times.type):
            is_local = times.type.tz is None
            in_us = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
            return _whole_ms(in_us, lambda us: utc_us(us, time_zone) if is_local else us)
        return times


def _whole_ms(microseconds: pa.Array, in_utc: Callable[[Microseconds], Microseconds]) -> pa.Array:
    """Rounded down, so that times before 1970 stay there; Arrow rounds towards 0."""
    none = microseconds.is_null().to_numpy(zero_copy_only=False)
    in_us = in_utc(microseconds.fill_null(0).to_numpy())
    return pa.array(in_us // 1000, pa.int64(), mask=none)


def rows_of(schema: StructType, topic: str | None) -> Rows:
    """Raises NotAllowed for a column that cannot be written."""
    kinds = {field.name: field.dataType for field in schema.fields}
    is_raw = isinstance(kinds.get(_VALUE), _TEXT)
    _require_value_as_such(kinds)
    found: dict[str, str] = {}
    values = []
    for name in kinds:
        part = _CONNECTORS.get(name) or (name if is_raw and name in _KINDS else None)
        if part is not None:
            _check(name, kinds[name], part, found)
            found[part] = name
        elif name.startswith("__"):
            _require_read_only(name)
        elif not (is_raw and name in _READ_ONLY_OF_OURS):
            values.append(name)
    if is_raw and values != [_VALUE]:
        others = ", ".join(name for name in values if name != _VALUE)
        raise NotAllowed(
            f"The column value is the whole message, but there are also {others}: remove them, "
            "or rename value to make all columns together the message"
        )
    if not values:
        raise NotAllowed(f"None of the columns {', '.join(kinds)} is the message: name one value")
    if topic is None and "topic" not in found:
        raise NotAllowed('format("pulsar") needs the option topic, or a column __topic')
    return Rows(topic, found, tuple(values), is_raw)


def _require_value_as_such(kinds: Mapping[str, DataType]) -> None:
    """Spark ignores the case of names, so `VALUE` is meant to be the message: writing a record with
    such a field instead would go unnoticed."""
    for name, kind in kinds.items():
        if name != _VALUE and name.lower() == _VALUE and isinstance(kind, _TEXT):
            raise NotAllowed(
                f"Is the column {name} the message? Then name it value. To make all columns "
                "together the message, give it another name, such as content"
            )


def _require_read_only(name: str) -> None:
    """Refuses unknown columns: ignoring one silently would lose data."""
    if name in _READ_ONLY:
        return
    known = (*_CONNECTORS, *_READ_ONLY)
    meant = [each for each in known if each.lower() == name.lower()]
    raise NotAllowed(
        f"The column {name} is not part of a message"
        + (
            f": did you mean {meant[0]}?"
            if meant
            else f"; the parts are {', '.join(known)}: remove it"
        )
    )


def _check(name: str, kind: DataType, part: str, found: Mapping[str, str]) -> None:
    if part in found:
        raise NotAllowed(f"The columns {found[part]} and {name} are both the {part}: remove one")
    if not isinstance(kind, _KINDS[part]):
        wanted = " or ".join(each.typeName() for each in _KINDS[part])
        raise NotAllowed(f"The column {name} is {kind.simpleString()}; it must be {wanted}")
