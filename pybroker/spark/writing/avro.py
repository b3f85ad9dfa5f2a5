"""Structured columns as Avro, by columns: the schema of a DataFrame, and its rows' bytes.

A record is its fields in sequence, so a struct is a concatenation of its children's columns; an
array or map is runs of its elements' column. A nullable field is a union with null, which is its
default: so columns can be added and removed later.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pybroker.base.errors import NotAllowed
from pybroker.spark.writing import byte_columns
from pybroker.spark.writing.byte_columns import Numbers, Part

_NAMESPACE: Final = "pybroker.spark"
_PLAIN: Final[dict[type[DataType], Any]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_DECIMAL_BYTES: Final = 16
_NULL, _THERE, _END = b"\x00", b"\x02", b"\x00"


# --- the schema ----------------------------------------------------------------------------------


def schema_of(schema: StructType, columns: Sequence[str]) -> str:
    """A record of those columns. Raises NotAllowed for a type without an Avro equivalent."""
    chosen = StructType([field for field in schema.fields if field.name in columns])
    return json.dumps(_record(chosen, "Row", set()))


def _record(struct: StructType, name: str, taken: set[str]) -> dict[str, Any]:
    """Named by its path; made unique, since `a_b` and `b` in `a` would share a name."""
    while name in taken:
        name += "_"
    taken.add(name)
    fields = [_field(field, f"{name}_{field.name}", taken) for field in struct.fields]
    return {"type": "record", "name": name, "namespace": _NAMESPACE, "fields": fields}


def _field(field: StructField, name: str, taken: set[str]) -> dict[str, Any]:
    if not (field.name.isidentifier() and field.name.isascii()):
        raise NotAllowed(
            f"The column {field.name!r} cannot be a field of an Avro record: rename it to letters, "
            "digits and underscores"
        )
    kind = _type(field.dataType, name, taken)
    if not field.nullable:
        return {"name": field.name, "type": kind}
    return {"name": field.name, "type": ["null", kind], "default": None}


def _type(kind: DataType, name: str, taken: set[str]) -> Any:
    match kind:
        case StructType():
            return _record(kind, name, taken)
        case ArrayType():
            items = _nullable(_type(kind.elementType, name, taken), kind.containsNull)
            return {"type": "array", "items": items}
        case MapType(keyType=StringType()):
            values = _nullable(_type(kind.valueType, name, taken), kind.valueContainsNull)
            return {"type": "map", "values": values}
        case DecimalType():
            decimal = {"type": "bytes", "logicalType": "decimal"}
            return {**decimal, "precision": kind.precision, "scale": kind.scale}
    if (plain := _PLAIN.get(type(kind))) is None:
        raise NotAllowed(
            f"{name.removeprefix('Row_')} is {kind.simpleString()}, which has no Avro type: "
            "cast it, or build the messages yourself in a column value"
        )
    return plain


def _nullable(kind: Any, is_nullable: bool) -> Any:
    return ["null", kind] if is_nullable else kind


# --- the rows ------------------------------------------------------------------------------------


def encode(batch: pa.RecordBatch, schema: StructType, columns: Sequence[str]) -> pa.Array:
    """One record of those columns for each row."""
    fields = [field for field in schema.fields if field.name in columns]
    parts = [_encoded(batch.column(f.name), f.dataType, f.nullable) for f in fields]
    return byte_columns.joined(parts, batch.num_rows)


def _encoded(array: pa.Array, kind: DataType, is_nullable: bool) -> Part:
    if not is_nullable:
        return _value(array, kind)
    if not array.null_count:
        return byte_columns.joined([_THERE, _value(array, kind)], len(array))
    there = array.is_valid().to_numpy(zero_copy_only=False)
    which: Part = byte_columns.either(there, _THERE, _NULL)
    return byte_columns.joined([which, byte_columns.only(there, _value(array, kind))], len(array))


def _value(array: pa.Array, kind: DataType) -> Part:
    """The bytes for null do not matter: they are never read."""
    match kind:
        case StructType():
            return _struct(array, kind)
        case ArrayType():
            array = solid(array)
            elements = _encoded(array.values, kind.elementType, kind.containsNull)
            return _blocks(array, elements, len(array.values))
        case MapType():
            array = solid(array)
            values = _encoded(array.items, kind.valueType, kind.valueContainsNull)
            pairs = [_sized(array.keys), values]
            return _blocks(array, byte_columns.joined(pairs, len(array.items)), len(array.items))
        case StringType() | BinaryType():
            return _sized(array)
        case DecimalType():
            return _decimal(array, kind)
        case BooleanType():
            return byte_columns.either(
                _numbers(array.cast(pa.int8()), pa.int8()) != 0, b"\x01", b"\x00"
            )
        case FloatType():
            return _fixed(_numbers(array, pa.float32()).astype("<f4"))
        case DoubleType():
            return _fixed(_numbers(array, pa.float64()).astype("<f8"))
        case DateType():
            return _zigzag(_numbers(array.cast(pa.date32()).cast(pa.int32()), pa.int64()))
        case TimestampType() | TimestampNTZType():
            microseconds = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
            return _zigzag(_numbers(microseconds, pa.int64()))
    return _zigzag(_numbers(array, pa.int64()))


def _struct(array: pa.Array, kind: StructType) -> Part:
    children = array.flatten()
    parts = [
        _encoded(child, field.dataType, field.nullable)
        for child, field in zip(children, kind.fields, strict=True)
    ]
    return byte_columns.joined(parts, len(array)) if parts else b""


def _blocks(array: pa.Array, elements: Part, count: int) -> Part:
    """Each row's elements: count, elements, end marker; only the end marker if there are none."""
    ends = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.diff(ends)
    column = byte_columns.joined([elements], count) if isinstance(elements, bytes) else elements
    has_some = counts > 0
    number = byte_columns.only(has_some, _zigzag(counts))
    return byte_columns.joined([number, byte_columns.runs(column, ends), _END], len(array))


def solid(array: pa.Array) -> pa.Array:
    """Arrow allows a null to have contents, which must not be counted."""
    sizes = np.diff(array.offsets.to_numpy(zero_copy_only=False))
    if sizes[array.is_null().to_numpy(zero_copy_only=False)].any():
        return pa.array(array.to_pylist(), array.type)
    return array


def _sized(array: pa.Array) -> Part:
    contents = byte_columns.of(array)
    sizes = byte_columns.lengths(contents, len(array))
    return byte_columns.joined([_zigzag(sizes), contents], len(array))


def _decimal(array: pa.Array, kind: DecimalType) -> Part:
    """Two's complement, big-endian; always as many bytes as Arrow has."""
    whole = array.cast(pa.decimal128(38, kind.scale))
    digits = np.frombuffer(whole.buffers()[1], np.uint8).reshape(-1, _DECIMAL_BYTES)
    chosen = digits[whole.offset : whole.offset + len(whole), ::-1]
    size = _zigzag(np.array([_DECIMAL_BYTES]))
    return byte_columns.joined([size, byte_columns.of_matrix(chosen)], len(array))


def _numbers(array: pa.Array, kind: pa.DataType) -> Any:
    return array.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)


def _fixed(numbers: Any) -> Part:
    width = numbers.dtype.itemsize
    return byte_columns.of_matrix(numbers.view(np.uint8).reshape(len(numbers), width))


def _zigzag(numbers: Numbers) -> Part:
    wide = numbers.astype(np.int64)
    return byte_columns.varints(((wide << 1) ^ (wide >> 63)).view(np.uint64))
