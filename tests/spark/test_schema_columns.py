"""Values of a topic's schema as columns."""

import base64
import datetime
import decimal
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, TimestampNTZType
from spark_values import avro, columns, encoded, key_value, zigzag

from pybroker.base.errors import NotAllowed
from pybroker.spark.columns.fields import PADDING, NotParsed
from pybroker.spark.schemas.adapting import spark_type
from pybroker.spark.schemas.avro import Walk, parse
from pybroker.spark.schemas.values import TopicSchema, ValueNotRead, one_schema
from pybroker.wire import pulsar_api_pb2 as pb

UTC = datetime.UTC


PERSON = avro(
    [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "scores", "type": {"type": "map", "values": ["null", "double"]}},
        {
            "name": "home",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Home",
                    "fields": [
                        {"name": "street", "type": "string"},
                        {"name": "since", "type": {"type": "int", "logicalType": "date"}},
                    ],
                },
            ],
        },
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "ok", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        },
    ]
)

people = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=8),
        "tags": st.lists(st.text(max_size=4), max_size=4),
        "scores": st.dictionaries(st.text(max_size=3), st.none() | st.floats(-9, 9), max_size=3),
        "home": st.none()
        | st.fixed_dictionaries({"street": st.text(max_size=4), "since": st.integers(0, 20000)}),
        "kind": st.sampled_from("AB"),
        "ok": st.booleans(),
        "raw": st.binary(max_size=5),
        "at": st.integers(0, 2**42),
        "price": st.integers(-(10**11), 10**11),
    }
)


def seen(person):
    """The person as a query returns it."""
    home = person["home"]
    since = None if home is None else datetime.date(1970, 1, 1) + datetime.timedelta(home["since"])
    return person | {
        "scores": list(person["scores"].items()),
        "home": None if home is None else home | {"since": since},
        "at": datetime.datetime(1970, 1, 1, tzinfo=UTC)
        + datetime.timedelta(milliseconds=person["at"]),
        "price": decimal.Decimal(person["price"]).scaleb(-2),
    }


@pytest.mark.slow
@given(st.lists(st.none() | people, min_size=1, max_size=30))
def test_avro_records_are_a_column_a_field(rows):
    contents = []
    for row in rows:
        if row is None:
            contents.append(None)
            continue
        price = row["price"].to_bytes(8, "big", signed=True)
        contents.append(encoded(PERSON.node(), row | {"price": price}))
    found = columns(PERSON, contents)
    for name in (each.name for each in PERSON.fields()):
        assert found[name] == [None if row is None else seen(row)[name] for row in rows], name


@pytest.mark.slow
@given(st.binary(max_size=60), st.integers(0, 40))
def test_any_bytes_for_a_record_are_values_or_an_error(data, cut):
    good = {
        "id": 1, "name": "n", "tags": ["t"], "scores": {"s": 1.0}, "home": None, "kind": "A",
        "ok": True, "raw": b"r", "at": 1, "price": b"\x01",
    }  # fmt: skip
    whole = encoded(PERSON.node(), good)
    try:
        found = columns(PERSON, [whole, whole[:cut] + data, whole])
    except ValueNotRead as error:
        assert "rawValue=true" in str(error)
    else:
        assert found["id"][0] == found["id"][2] == 1


def test_a_block_that_claims_too_much_is_refused():
    node = parse({"type": "array", "items": "null"})
    data = np.frombuffer(zigzag(2**40) + bytes(PADDING), np.uint8)
    with pytest.raises(NotParsed, match="more items"):
        Walk(data, np.array([0]), np.array([len(data) - PADDING])).read(node)


def test_unions_of_numbers_widen_and_others_are_members():
    node = parse({"type": "record", "name": "R", "fields": [
        {"name": "n", "type": ["int", "long"]},
        {"name": "x", "type": ["null", "int", "string"]},
    ]})  # fmt: skip
    rows = [zigzag(0) + zigzag(5) + zigzag(1) + zigzag(7),
            zigzag(1) + zigzag(2**40) + zigzag(2) + zigzag(1) + b"s",
            zigzag(0) + zigzag(1) + zigzag(0)]  # fmt: skip
    schema = avro([{"name": "n", "type": ["int", "long"]},
                   {"name": "x", "type": ["null", "int", "string"]}])  # fmt: skip
    assert spark_type(node)["n"].dataType == LongType()
    found = columns(schema, rows)
    assert found["n"] == [5, 2**40, 1]
    assert [each and (each["member0"], each["member1"]) for each in found["x"]][:2] == [
        (7, None),
        (None, "s"),
    ]


def test_a_name_is_that_of_its_own_namespace():
    def address(space, kind):
        fields = [{"name": "street", "type": kind}]
        return {"type": "record", "name": "Address", "namespace": space, "fields": fields}

    schema = avro(
        [
            {"name": "home", "type": address("one", "string")},
            {"name": "work", "type": address("two", "long")},
            {"name": "other", "type": "Address"},
            {"name": "dotted", "type": {"type": "fixed", "name": "three.Code", "size": 1}},
            {"name": "again", "type": "three.Code"},
        ],
        namespace="one",
    )
    street = zigzag(1) + b"s"
    assert columns(schema, [street + zigzag(7) + street + b"ab"]) == {
        "home": [{"street": "s"}],
        "work": [{"street": 7}],
        "other": [{"street": "s"}],
        "dotted": [b"a"],
        "again": [b"b"],
    }


def test_a_recursive_schema_is_no_other_one_of_its_name():
    inner = {"type": "record", "name": "T", "namespace": "one", "fields": []}
    fields = [{"name": "first", "type": inner}, {"name": "next", "type": ["null", "T"]}]
    with pytest.raises(NotAllowed, match="recursive"):
        avro([{"name": "t", "type": {"type": "record", "name": "T", "fields": fields}}]).fields()


def test_a_recursive_schema_is_refused_with_what_to_do():
    node = {"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]}
    with pytest.raises(NotAllowed, match="rawValue=true"):
        TopicSchema(pb.Schema.Avro, json.dumps(node).encode()).fields()


JSON = TopicSchema(
    pb.Schema.Json,
    json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "I", "fields": [
            {"name": "x", "type": "double"}]}]},
    ]}).encode(),
)  # fmt: skip


def test_json_records_are_a_column_a_field():
    rows = [
        {"id": 1, "tags": ["a", "b"], "at": 1000, "inner": {"x": 0.5}, "unknown": 3},
        {"id": 2, "tags": [], "at": 2000, "inner": None},
    ]
    contents = [json.dumps(rows[0], indent=1).encode(), json.dumps(rows[1]).encode(), None]
    found = columns(JSON, contents)
    assert found["id"] == [1, 2, None]
    assert found["tags"] == [["a", "b"], [], None]
    assert found["at"][0] == datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert found["inner"] == [{"x": 0.5}, None, None]


@pytest.mark.parametrize("unit", ["millis", "micros"])
def test_a_time_without_a_zone_has_none(unit):
    kind = {"type": "long", "logicalType": f"local-timestamp-{unit}"}
    found = columns(json_of(kind), [b'{"id": 1, "x": -1}'])["x"]
    step = datetime.timedelta(**{f"{unit.rstrip('s')}seconds": 1})
    assert found == [datetime.datetime(1970, 1, 1) - step]
    assert json_of(kind).fields()[1].dataType == TimestampNTZType()


def test_what_is_no_json_is_null():
    found = columns(JSON, [b'{"id": 1}', b"no JSON", b'{"id": "text"}', b"[]"])
    assert found["id"] == [1, None, None, None]


def json_of(kind):
    fields = [{"name": "id", "type": "int"}, {"name": "x", "type": kind}]
    definition = {"type": "record", "name": "R", "fields": fields}
    return TopicSchema(pb.Schema.Json, json.dumps(definition).encode())


def test_json_numbers_of_two_kinds_are_of_the_wider_one():
    longs = [b'{"id": 1, "x": 5}', b'{"id": 2, "x": 1099511627776}']
    assert columns(json_of(["null", "int", "long"]), longs) == {"id": [1, 2], "x": [5, 2**40]}
    doubles = json_of(["float", "null", "double"])
    assert columns(doubles, [b'{"id": 1, "x": 0.1}']) == {"id": [1], "x": [0.1]}


def test_json_of_an_unknown_kind_is_refused_with_advice():
    with pytest.raises(NotAllowed, match=r"distinguish int, string.*rawValue=true"):
        json_of(["null", "int", "string"]).fields()


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        (pb.Schema.Bool, b"\x01", True),
        (pb.Schema.Int8, b"\xff", -1),
        (pb.Schema.Int16, b"\xff\x00", -256),
        (pb.Schema.Int32, struct.pack(">i", -70000), -70000),
        (pb.Schema.Int64, struct.pack(">q", 2**40), 2**40),
        (pb.Schema.Float, struct.pack(">f", 0.5), 0.5),
        (pb.Schema.Double, struct.pack(">d", 0.1), 0.1),
        (pb.Schema.Date, struct.pack(">q", 86_400_000), datetime.date(1970, 1, 2)),
        (pb.Schema.LocalDate, struct.pack(">q", 2), datetime.date(1970, 1, 3)),
        (
            pb.Schema.Timestamp,
            struct.pack(">q", 1500),
            datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC),
        ),
        (
            pb.Schema.Instant,
            struct.pack(">qi", 1, 7000),
            datetime.datetime(1970, 1, 1, 0, 0, 1, 7, tzinfo=UTC),
        ),
        (pb.Schema.String, "ä".encode(), "ä"),
    ],
)
def test_primitives_are_a_column_of_their_type(kind, data, value):
    found = columns(TopicSchema(kind), [data, None, data])
    assert found == {"value": [value, None, value]}


def test_a_primitive_of_another_length_is_an_error_that_shows_it():
    with pytest.raises(ValueNotRead, match=r"does not have 8 bytes.*b'abc'"):
        columns(TopicSchema(pb.Schema.Int64), [bytes(8), b"abc"])


def test_a_key_with_its_value_are_two_columns():
    schema = key_value(TopicSchema(pb.Schema.String), avro([{"name": "n", "type": "int"}]))
    assert schema.fields()[0].dataType == StringType()
    content = struct.pack(">i", 1) + b"k" + struct.pack(">i", 1) + zigzag(5)
    assert columns(schema, [content, None]) == {"key": ["k", None], "value": [{"n": 5}, None]}


def test_a_key_that_is_apart_is_the_messages():
    schema = key_value(
        TopicSchema(pb.Schema.String),
        TopicSchema(pb.Schema.Int32),
        **{"kv.encoding.type": "SEPARATED"},
    )
    assert columns(schema, [struct.pack(">i", 9)], keys=[b"k"]) == {"key": ["k"], "value": [9]}


def test_a_key_that_is_apart_is_decoded_where_its_producer_encoded_it():
    schema = key_value(
        TopicSchema(pb.Schema.Int32),
        avro([{"name": "n", "type": "int"}]),
        **{"kv.encoding.type": "SEPARATED"},
    )
    keys = [base64.b64encode(struct.pack(">i", 7)), None]
    found = columns(schema, [zigzag(5)] * 2, keys=keys, keys_are_base64=True)
    assert found == {"key": [7, None], "value": [{"n": 5}] * 2}


def test_topics_of_different_schemas_are_refused_unless_they_are_to_be_raw():
    found = [("a", TopicSchema(pb.Schema.String)), ("b", TopicSchema(pb.Schema.Int8))]
    with pytest.raises(NotAllowed, match="a, b have different schemas"):
        one_schema(found, False)
    with pytest.raises(NotAllowed, match="a, b, a and 3 more have different schemas"):
        one_schema(found * 3, False)
    assert one_schema(found, True) is None
    assert one_schema(found[:1] * 2, False) == found[0][1]
