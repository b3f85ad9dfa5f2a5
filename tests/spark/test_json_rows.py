"""DataFrame columns as JSON objects, read back by Python's own parser."""

import datetime as dt
import json
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


def read_back(rows, kind=KIND):
    """By the source's own reader."""
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


def test_a_decimal_may_be_a_number_and_what_is_no_object_of_the_schema_is_null():
    found = read_back([FULL_JSON | {"money": -12.3}, [1], FULL_JSON | {"long": "x"}, b"{"])
    assert [row["money"] for row in found] == [Decimal("-12.30"), None, None, None]
    assert [row["long"] for row in found] == [-(2**63), None, None, None]
