"""Avro from typed values: bytes as in the specification, and hostile values are refused early."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.values.avro import Codec, NotAvro

TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "a.b",
    "fields": [
        {"name": "name", "type": "string", "default": "leaf"},
        {"name": "next", "type": ["null", "Tree"], "default": None},
    ],
}
CASES: list[tuple[Any, Any, str]] = [
    ("null", None, ""),
    ("boolean", True, "01"),
    ("int", -64, "7f"),
    ("int", 64, "8001"),
    ("long", -(2**63), "ffffffffffffffffff01"),
    ({"type": "long"}, 2**63 - 1, "feffffffffffffffff01"),
    ("float", 1.5, "0000c03f"),
    ("double", -2, "00000000000000c0"),
    ("string", "foo", "06666f6f"),
    ("bytes", "\xff\0", "04ff00"),
    ({"type": "fixed", "name": "F", "size": 2}, "ab", "6162"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "02"),
    ({"type": "array", "items": "long"}, [3, 27], "04063600"),
    ({"type": "array", "items": "long"}, [], "00"),
    ({"type": "map", "values": "int"}, {"k": 1}, "02026b0200"),
    (["null", "string"], "a", "020261"),
    (["null", "string"], None, "00"),
    (TREE, {"name": "r", "next": {"name": "l", "next": None}}, "027202026c00"),
]


@pytest.mark.parametrize(("schema", "value", "encoded"), CASES)
def test_a_value_is_what_the_specification_says(schema: Any, value: Any, encoded: str) -> None:
    codec = Codec(json.dumps(schema))
    assert codec.encode(value).hex() == encoded
    assert codec.decode(bytes.fromhex(encoded)) == value


def test_a_default_stands_for_what_was_not_said() -> None:
    codec = Codec(json.dumps(TREE))
    assert codec.decode(codec.encode({})) == {"name": "leaf", "next": None}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", 2**31),
        ("int", True),
        ("int", "1"),
        ("long", 2**63),
        ("float", 1e300),
        ("double", None),
        ("boolean", 1),
        ("string", 1),
        ("bytes", "\u0100"),
        ("null", 0),
        ({"type": "fixed", "name": "F", "size": 2}, "abc"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "map", "values": "int"}, []),
        (["null", "int"], "a"),
        (TREE, {"name": "a", "odd": 1}),
        (TREE, []),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, {}),
        ("Unknown", 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused(schema: Any, value: Any) -> None:
    with pytest.raises(NotAvro):
        Codec(json.dumps(schema)).encode(value)


@pytest.mark.parametrize("text", ["", "{", "1", '{"type": "record", "name": "R", "fields": [{}]}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(NotAvro):
        Codec(text).encode(1)


@pytest.mark.slow
@pytest.mark.parametrize("schema", [schema for schema, _, _ in CASES], ids=str)
@given(data=st.binary(max_size=40))
def test_whatever_comes_is_a_value_or_refused(schema: Any, data: bytes) -> None:
    with contextlib.suppress(NotAvro):
        Codec(json.dumps(schema)).decode(data)


def doubling(levels: int) -> Any:
    """A record of two records of two records, and so on: values without a byte."""
    schema: Any = {"type": "record", "name": "R0", "fields": []}
    for level in range(1, levels):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "array", "items": "null"}, b"\xf0\xf0\x01" * 1000 + b"\0"),
        (TREE, b"\0\x02" * 100_000),
        ("bytes", b"\xfe\xff\xff\xff\x0f"),
        ("bytes", b"\x01"),
        (doubling(60), b""),
    ],
    ids=["one block", "many blocks", "deep", "long", "negative", "exponential"],
)
def test_a_message_that_says_more_than_it_holds_is_refused(schema: Any, data: bytes) -> None:
    with pytest.raises(NotAvro):
        Codec(json.dumps(schema)).decode(data)


NAMED = {"type": "record", "name": "R", "namespace": "a", "fields": [{"name": "n", "type": "int"}]}


@pytest.mark.parametrize(
    ("union", "value", "encoded"),
    [
        (["null", "string"], {"string": "a"}, "020261"),
        (["int", "long"], {"long": 1}, "0202"),
        (["null", NAMED], {"a.R": {"n": 1}}, "0202"),
        (["null", NAMED], {"R": {"n": 1}}, "0202"),
        (["null", NAMED], {"n": 1}, "0202"),
        (["string", {"type": "map", "values": "int"}], {"string": 1}, "02020c737472696e670200"),
        (["string", {"type": "map", "values": "int"}], {"map": {"a": 1}}, "020202610200"),
        (["null", {"type": "array", "items": "int"}], {"array": [1]}, "02020200"),
    ],
)
def test_a_value_of_a_union_may_name_its_branch(union: Any, value: Any, encoded: str) -> None:
    assert Codec(json.dumps(union)).encode(value).hex() == encoded


def two_ways() -> str:
    """Each level of a value matches either of two branches, but the last level matches neither."""
    inner = {"type": "record", "name": "B", "fields": [{"name": "n", "type": ["A", "B", "null"]}]}
    outer = {"type": "record", "name": "A", "fields": [{"name": "n", "type": ["A", inner, "null"]}]}
    return json.dumps(outer)


def test_a_value_with_ways_without_number_is_given_up() -> None:
    value: Any = 1
    for _ in range(60):
        value = {"n": value}
    with pytest.raises(NotAvro, match="too expensive"):
        Codec(two_ways()).encode(value, 10_000)
    assert Codec(two_ways()).encode({"n": {"n": None}}, 10_000) == b"\x00\x04"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "R"},
        {"type": "array"},
        {"type": "fixed", "name": "F"},
        {"type": "enum", "name": "E", "symbols": 1},
        {"name": "A", "type": ["A"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [1, "a", [1], {"a": 1}, None], ids=str)
def test_a_broken_schema_is_told_from_a_bug(schema: Any, value: Any) -> None:
    with pytest.raises(NotAvro):
        Codec(json.dumps(schema)).encode(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "r" * 2000, "fields": []},
        {"type": "record", "name": "r", "namespace": "n" * 2000, "fields": []},
        {"type": "record", "name": "r", "fields": [{"name": "f" * 2000, "type": "int"}]},
        {"type": "enum", "name": ["e"], "symbols": []},
        {"type": "enum", "name": "e", "namespace": ["e"], "symbols": []},
    ],
)
def test_names_are_texts_and_not_long(schema: Any) -> None:
    """A name may be repeated for each of many values, and a namespace is part of many names."""
    with pytest.raises(NotAvro, match="name"):
        Codec(json.dumps(schema))


def test_a_type_that_is_none_is_said_shortly() -> None:
    with pytest.raises(NotAvro) as refused:
        Codec(json.dumps("A" * 100_000)).encode(1)
    assert len(str(refused.value)) < 200
