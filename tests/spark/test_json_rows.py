"""DataFrame columns as JSON objects, read back by Python's own parser."""

import datetime as dt
import json
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pybroker.spark.columns.fields import Slices
from pybroker.spark.schemas.adapting import adapted, arrow_type
from pybroker.spark.schemas.avro import parse
from pybroker.spark.schemas.json_values import read_json
from pybroker.spark.writing import avro, json_rows

PERSON = StructType([StructField("a", IntegerType()), StructField("b", StringType())])
KIND = StructType(
    [
        StructField("flag", BooleanType()),
        StructField("long", LongType(), nullable=False),
        StructField("double", DoubleType()),
        StructField("text", StringType()),
        StructField("raw", BinaryType()),
        StructField("money", DecimalType(10, 2)),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("person", PERSON),
        StructField("lists", ArrayType(ArrayType(LongType()))),
        StructField("people", ArrayType(PERSON)),
        StructField("scores", MapType(StringType(), DoubleType())),
    ]
)
FULL = {
    "flag": True,
    "long": -(2**63),
    "double": 0.1,
    "text": 'a "quoted" \\ line\n\x01 and é, 語',
    "raw": b"\x00\xff",
    "money": Decimal("-12.30"),
    "day": dt.date(1970, 1, 3),
    "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
    "person": {"a": 7, "b": None},
    "lists": [[1, None], None, []],
    "people": [{"a": 1, "b": "x"}, None],
    "scores": [("x", 1.5), ("y", None), ('"', 2.0)],
}
FULL_JSON = FULL | {
    "raw": "AP8=",
    "money": "-12.30",
    "day": 2,
    "at": 1_000_000,
    "scores": {"x": 1.5, "y": None, '"': 2.0},
}
EMPTY = {**dict.fromkeys(FULL), "long": 0, "people": [], "scores": []}
EMPTY_JSON = EMPTY | {"scores": {}}


def written(rows, kind=KIND):
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(list(arrow_type(kind))))
    return batch, kind


def objects(batch, kind):
    return [json.loads(each.as_py()) for each in json_rows.encode(batch, kind, kind.fieldNames())]


@pytest.mark.parametrize("rows", [[0], [1], [0, 1, 1, 0, 0], []])
def test_every_type_is_what_json_has_for_it(rows):
    given = [(FULL, EMPTY)[row] for row in rows]
    assert objects(*written(given)) == [(FULL_JSON, EMPTY_JSON)[row] for row in rows]


def test_a_part_of_a_batch_is_its_own_rows():
    batch, kind = written([FULL, EMPTY, FULL, EMPTY])
    assert objects(batch.slice(1, 2), kind) == [EMPTY_JSON, FULL_JSON]


def test_what_is_no_number_is_a_text():
    kind = StructType([StructField("n", DoubleType())])
    found = objects(*written([{"n": float("nan")}, {"n": float("-inf")}, {"n": 1.0}], kind))
    assert found == [{"n": "NaN"}, {"n": "-Infinity"}, {"n": 1.0}]


@pytest.mark.parametrize("beside", [1.0, float("nan")])
def test_a_zero_keeps_its_sign(beside):
    """Even in rows that are read object by object, because Arrow's reader does not support NaN."""
    kind = StructType([StructField("n", DoubleType())])
    batch, kind = written([{"n": -0.0}, {"n": 0.0}, {"n": None}, {"n": beside}], kind)
    texts = [each.as_py() for each in json_rows.encode(batch, kind, kind.fieldNames())]
    found = [each["n"] for each in read_back(texts, kind)]
    assert found[2] is None
    assert [math.copysign(1, each) for each in found[:2]] == [-1, 1]


def read_back(rows, kind=KIND):
    """The columns, as the source's own reader returns them."""
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in rows]
    ends = np.cumsum([0, *map(len, texts)])
    node = parse(json.loads(avro.schema_of(kind, kind.fieldNames())))
    data = np.frombuffer(b"".join(texts) + bytes(16), np.uint8)
    found = read_json(data, Slices(ends[:-1], np.diff(ends)), node)
    columns = zip(kind.fields, found.flatten(), strict=True)
    arrays = [adapted(column, arrow_type(field.dataType)) for field, column in columns]
    return pa.RecordBatch.from_arrays(arrays, kind.fieldNames()).to_pylist()


def test_every_type_is_read_back_maps_too():
    batch, kind = written([FULL, EMPTY, FULL])
    texts = [each.as_py() for each in json_rows.encode(batch, kind, kind.fieldNames())]
    assert read_back(texts) == batch.to_pylist()


def of_type(kind):
    return StructType([StructField("x", kind)])


def values_of(kind, *texts):
    return [row["x"] for row in read_back(texts, of_type(kind))]


def test_what_is_no_number_is_read_back():
    found = values_of(DoubleType(), b'{"x":"NaN"}', b'{"x":"-Infinity"}', b'{"x":0.5}')
    assert math.isnan(found[0])
    assert found[1:] == [-math.inf, 0.5]


def test_types_within_arrays_and_maps_are_read_back():
    day = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    element = StructType(
        [
            StructField("raw", BinaryType()),
            StructField("money", DecimalType(10, 2)),
            StructField("at", TimestampType()),
        ]
    )
    full = {"raw": b"\x00\xff", "money": Decimal("1.50"), "at": day}
    given = [[full, None, dict.fromkeys(full)], None, []]
    for kind in (ArrayType(element), MapType(StringType(), element)):
        keyed = isinstance(kind, MapType)
        rows = [{"x": [("k", e) for e in each[:1]] if each and keyed else each} for each in given]
        batch, whole = written(rows, of_type(kind))
        texts = [each.as_py() for each in json_rows.encode(batch, whole, ["x"])]
        assert read_back(texts, whole) == rows


def test_milliseconds_within_an_array_are_milliseconds():
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    fields = [{"name": "x", "type": {"type": "array", "items": millis}}]
    text = b'{"x":[1000]}'
    data = np.frombuffer(text, np.uint8)
    whole = Slices(np.array([0]), np.array([len(text)]))
    found = read_json(data, whole, parse({"type": "record", "name": "R", "fields": fields}))
    assert found.to_pylist() == [{"x": [dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)]}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"123456789012345678.12345678901234567891", "123456789012345678.12345678901234567891"),
        (b"1e-7", "1e-7"),
        (b'"0.000000000000000000005"', "1e-20"),
        (b"12345678901234567890123", None),  # too many digits for a scale of 20
        (b'"1e30"', None),
        (b'"abc"', None),
        (b'"NaN"', None),
        (b"true", None),
        (b"1e999999999999999999999", None),
    ],
)
def test_a_decimal_is_the_number_that_stands_there_or_null(text, value):
    expected = None if value is None else Decimal(value)
    found = values_of(DecimalType(38, 20), b'{"x":%s}' % text, b'{"x":"1"}')
    assert found == [expected, Decimal(1)]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ArrayType(StringType()), b'"abc"'),
        (ArrayType(StringType()), b'{"a":1}'),
        (LongType(), b"9223372036854775808"),
        (DateType(), b"2147483648"),
        (LongType(), b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_a_value_of_another_kind_is_null_and_ends_nothing(kind, text):
    assert values_of(kind, b'{"x":%s}' % text, b"{", b'{"x":null}') == [None] * 3


@pytest.mark.parametrize("texts", [(b'{"x":1}{"x":2}', b" "), (b'{"x":1', b'}{"x":2}')])
def test_no_row_takes_anothers_place(texts):
    assert values_of(LongType(), *texts, b'{"x":3}\n') == [None, None, 3]


def test_a_decimal_may_be_a_number_and_what_is_no_object_of_the_schema_is_null():
    found = read_back([FULL_JSON | {"money": -12.3}, [1], FULL_JSON | {"long": "x"}, b"{"])
    assert [row["money"] for row in found] == [Decimal("-12.30"), None, None, None]
    assert [row["long"] for row in found] == [-(2**63), None, None, None]
