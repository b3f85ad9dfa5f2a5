"""Rows encoded by columns, decoded one by one by their schema."""

import datetime as dt
import json
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from avro_decoder import Decoder
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DayTimeIntervalType,
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
from pybroker.spark.schemas.adapting import arrow_type
from pybroker.spark.writing import avro

INNER = StructType([StructField("a", IntegerType(), False), StructField("b", StringType(), True)])
EVERYTHING = StructType(
    [
        StructField("flag", BooleanType(), True),
        StructField("tiny", ByteType(), False),
        StructField("small", ShortType(), True),
        StructField("whole", IntegerType(), True),
        StructField("long", LongType(), False),
        StructField("real", FloatType(), True),
        StructField("double", DoubleType(), True),
        StructField("text", StringType(), True),
        StructField("raw", BinaryType(), True),
        StructField("money", DecimalType(12, 2), True),
        StructField("day", DateType(), True),
        StructField("at", TimestampType(), True),
        StructField("local", TimestampNTZType(), True),
        StructField("nested", INNER, True),
        StructField("list", ArrayType(ArrayType(LongType(), True), True), True),
        StructField("people", ArrayType(INNER, False), False),
        StructField("scores", MapType(StringType(), DoubleType(), True), True),
    ]
)
UTC = dt.UTC
FULL = {
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "whole": -(2**31),
    "long": 2**63 - 1,
    "real": 0.5,
    "double": -1e300,
    "text": "grüße",
    "raw": b"\x00\xff",
    "money": Decimal("-1234567890.12"),
    "day": dt.date(1969, 12, 31),
    "at": dt.datetime(2024, 2, 29, 12, 0, 0, 123456, UTC),
    "local": dt.datetime(1900, 1, 1),
    "nested": {"a": 7, "b": None},
    "list": [[1, None, -3], None, []],
    "people": [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
    "scores": {"x": 1.5, "y": None},
}
EMPTY = {**dict.fromkeys(FULL), "tiny": 0, "long": -(2**63), "people": []}
OTHER = {**FULL, "flag": False, "text": "", "money": Decimal("0.01"), "scores": {}, "list": []}


def round_trip(rows, kind, drop=0):
    arrow = pa.schema(list(arrow_type(kind)))
    batch = pa.RecordBatch.from_pylist(rows, arrow)[drop:]
    names = kind.fieldNames()
    schema = json.loads(avro.schema_of(kind, names))
    decoded = []
    for record in avro.encode(batch, kind, names):
        decoder = Decoder(record.as_py())
        decoded.append(decoder.read(schema))
        assert not decoder.data.read(), "bytes are left"
    return decoded


@pytest.mark.parametrize("rows", [[FULL], [EMPTY], [FULL, EMPTY, OTHER, EMPTY, FULL]])
def test_every_type_comes_back(rows):
    assert round_trip(rows, EVERYTHING) == rows


def test_a_part_of_a_batch_comes_back():
    assert round_trip([FULL, OTHER, EMPTY, FULL], EVERYTHING, drop=2) == [EMPTY, FULL]


def test_only_the_chosen_columns_are_written():
    kind = StructType([StructField("a", LongType(), False), StructField("__key", StringType())])
    batch = pa.RecordBatch.from_pylist([{"a": 1, "__key": "k"}])
    [field] = json.loads(avro.schema_of(kind, ["a"]))["fields"]
    assert field == {"name": "a", "type": "long"}
    assert avro.encode(batch, kind, ["a"]).to_pylist() == [b"\x02"]


def test_no_two_records_share_a_name():
    leaf = StructType([StructField("x", LongType())])
    within = StructType([StructField("b", leaf), StructField("b_", leaf)])
    kind = StructType([StructField("a", within), StructField("a_b", leaf)])
    names = re.findall(r'"record", "name": "(\w+)"', avro.schema_of(kind, kind.fieldNames()))
    assert names[:3] == ["Row", "Row_a", "Row_a_b"]
    assert len(set(names)) == 5


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("gap", DayTimeIntervalType()), "gap is interval day to second"),
        (StructField("by", MapType(LongType(), LongType())), "by is map<bigint,bigint>"),
        (StructField("what is it", LongType()), "rename it"),
    ],
)
def test_what_avro_has_no_place_for_is_refused(field, said):
    with pytest.raises(NotAllowed, match=said):
        avro.schema_of(StructType([field]), [field.name])
