"""Structured columns as JSON, by columns.

The schema is Avro's, as everywhere in Pulsar; a union's value is written without its branch name.
Decimals are strings, so that no digit is lost, bytes are base64, dates and times are the numbers
that Avro uses. Values that JSON numbers cannot express ("NaN") are strings.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pybroker.spark.writing import byte_columns
from pybroker.spark.writing.avro import solid
from pybroker.spark.writing.byte_columns import Part

_NULL: Final = b"null"
_ESCAPED: Final = r'["\\\x00-\x1f]'
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def encode(batch: pa.RecordBatch, schema: StructType, columns: Sequence[str]) -> pa.Array:
    """One object of those columns for each row."""
    fields = [field for field in schema.fields if field.name in columns]
    values = [_encoded(batch.column(each.name), each.dataType) for each in fields]
    return _object([each.name for each in fields], values, batch.num_rows)


def _object(names: Sequence[str], values: Sequence[Part], rows: int) -> pa.Array:
    parts: list[Part] = [b"{"]
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        parts += [(b"," if index else b"") + json.dumps(name).encode() + b":", value]
    return byte_columns.joined([*parts, b"}"], rows)


def _encoded(array: pa.Array, kind: DataType) -> Part:
    if not array.null_count:
        return _value(array, kind)
    there = array.is_valid().to_numpy(zero_copy_only=False)
    value = byte_columns.only(there, _value(array, kind))
    return byte_columns.joined([value, byte_columns.either(there, b"", _NULL)], len(array))


def _value(array: pa.Array, kind: DataType) -> Part:
    """The text for null does not matter."""
    match kind:
        case StructType():
            return _struct(array, kind)
        case ArrayType():
            array = solid(array)
            return _list(array, _encoded(array.values, kind.elementType), b"[", b"]")
        case MapType():
            array = solid(array)
            values = _encoded(array.items, kind.valueType)
            pairs = byte_columns.joined([_text(array.keys), b":", values], len(array.items))
            return _list(array, pairs, b"{", b"}")
        case StringType():
            return _text(array)
        case BinaryType():
            texts = [base64.b64encode(each or b"").decode() for each in array.to_pylist()]
            return _quoted(pa.array(texts, pa.large_string()))
        case DecimalType():
            return _quoted(array.cast(pa.string()))
        case DateType():
            return _plain(array.cast(pa.date32()).cast(pa.int32()))
        case TimestampType() | TimestampNTZType():
            return _plain(array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64()))
        case FloatType() | DoubleType():
            return _number(array)
        case BooleanType():
            return byte_columns.either(_is_true(array), b"true", b"false")
    return _plain(array)


def _struct(array: pa.Array, kind: StructType) -> Part:
    children = zip(array.flatten(), kind.fields, strict=True)
    values = [_encoded(child, field.dataType) for child, field in children]
    return _object(kind.fieldNames(), values, len(array))


def _is_true(array: pa.Array) -> Any:
    return array.fill_null(False).to_numpy(zero_copy_only=False)


def _plain(array: pa.Array) -> Part:
    return byte_columns.of(array.cast(pa.string()))


def _number(array: pa.Array) -> Part:
    texts = array.cast(pa.string())
    if not pc.all(pc.is_finite(array), min_count=0).as_py():  # of those that are not null
        for text, named in _NOT_FINITE.items():
            texts = pc.if_else(pc.equal(texts, text), named, texts)
    negative = pc.equal(texts, "-0")  # which parsers take for the integer 0
    if pc.any(negative).as_py():
        texts = pc.if_else(negative, "-0.0", texts)
    return byte_columns.of(texts)


def _text(array: pa.Array) -> Part:
    texts = array.cast(pa.large_string())
    special = pc.fill_null(pc.match_substring_regex(texts, _ESCAPED), False)
    if pc.any(special).as_py():
        escaped = [json.dumps(each)[1:-1] for each in texts.filter(special).to_pylist()]
        texts = pc.replace_with_mask(texts, special, pa.array(escaped, pa.large_string()))
    return _quoted(texts)


def _quoted(texts: pa.Array) -> Part:
    return byte_columns.joined([b'"', byte_columns.of(texts), b'"'], len(texts))


def _list(array: pa.Array, elements: Part, begin: bytes, end: bytes) -> Part:
    """Each row's elements, separated by commas."""
    ends = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    is_first = np.zeros(byte_columns.lengths(elements, int(ends[-1])).size, np.bool_)
    is_first[ends[:-1][np.diff(ends) > 0]] = True
    commas = byte_columns.either(is_first, b"", b",")
    column = byte_columns.joined([commas, elements], len(is_first))
    return byte_columns.joined([begin, byte_columns.runs(column, ends), end], len(array))
