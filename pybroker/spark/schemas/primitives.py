"""Values of Pulsar's primitive schemas, big-endian with a fixed length each."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampType,
)

from pybroker.spark.columns.arrays import vector, with_nulls
from pybroker.spark.columns.fields import Data, NotParsed, Slices
from pybroker.wire import pulsar_api_pb2 as pb

_DAY_MS: Final = 86_400_000


class Primitive(NamedTuple):
    type: DataType
    width: int
    # Converts the bytes of all rows, a matrix with a line per row, to an array.
    read: Callable[[Any], pa.Array]


def _number(kind: str) -> Callable[[Any], pa.Array]:
    native = np.dtype(kind).newbyteorder("=")
    return lambda rows: vector(rows.reshape(-1).view(kind).astype(native))


def _longs(rows: Any) -> Any:
    return rows.reshape(-1).view(">i8").astype(np.int64)


def _boolean(rows: Any) -> pa.Array:
    return vector(rows.reshape(-1) != 0)


def _timestamp(rows: Any) -> pa.Array:
    return vector(_longs(rows) * 1000).cast(pa.timestamp("us", "UTC"))


def _instant(rows: Any) -> pa.Array:
    seconds = _longs(np.ascontiguousarray(rows[:, :8]))
    nanos = np.ascontiguousarray(rows[:, 8:]).reshape(-1).view(">i4").astype(np.int64)
    return vector(seconds * 1_000_000 + nanos // 1000).cast(pa.timestamp("us", "UTC"))


def _date(rows: Any) -> pa.Array:
    return vector((_longs(rows) // _DAY_MS).astype(np.int32)).cast(pa.date32())


def _local_date(rows: Any) -> pa.Array:
    return vector(_longs(rows).astype(np.int32)).cast(pa.date32())


_Type = pb.Schema
PRIMITIVES: Final[Mapping[int, Primitive]] = {
    _Type.Bool: Primitive(BooleanType(), 1, _boolean),
    _Type.Int8: Primitive(ByteType(), 1, _number(">i1")),
    _Type.Int16: Primitive(ShortType(), 2, _number(">i2")),
    _Type.Int32: Primitive(IntegerType(), 4, _number(">i4")),
    _Type.Int64: Primitive(LongType(), 8, _number(">i8")),
    _Type.Float: Primitive(FloatType(), 4, _number(">f4")),
    _Type.Double: Primitive(DoubleType(), 8, _number(">f8")),
    _Type.Date: Primitive(DateType(), 8, _date),
    _Type.Time: Primitive(LongType(), 8, _number(">i8")),  # ms of the day
    _Type.Timestamp: Primitive(TimestampType(), 8, _timestamp),
    _Type.Instant: Primitive(TimestampType(), 12, _instant),
    _Type.LocalDate: Primitive(DateType(), 8, _local_date),
    _Type.LocalTime: Primitive(LongType(), 8, _number(">i8")),  # ns of the day
}


def read_primitive(data: Data, slices: Slices, primitive: Primitive) -> pa.Array:
    """Null where a row has no value or an empty one. Raises NotParsed."""
    present = slices.length > 0
    if (slices.length[present] != primitive.width).any():
        raise NotParsed(f"a value does not have {primitive.width} bytes")
    start = np.where(present, slices.start, 0)
    return with_nulls(primitive.read(data[start[:, None] + np.arange(primitive.width)]), present)
