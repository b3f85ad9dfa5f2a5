"""Avro's schema resolution: which schema can read data of another, and why not."""

import json
from typing import Any

import pytest

from pybroker.broker.schemas import avro
from pybroker.broker.schemas.avro import (
    MAX_PARTS,
    MAX_SCHEMA_BYTES,
    NotAvro,
    parse,
    why_unreadable,
)


def record(*fields: Any, name: str = "r", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": list(symbols), **more}


def why(reader: Any, writer: Any) -> str | None:
    return why_unreadable(*(parse(json.dumps(schema).encode()) for schema in (reader, writer)))


A, B = field("a"), field("b")
LINKED = record(field("next", ["null", "r"]), A)


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (record(A), record(A, B)),
        (record(A, field("b", default=0)), record(A)),
        (record(field("a", "long")), record(A)),
        (record(field("a", ["null", "int"])), record(A)),
        (record(field("z", aliases=["a"])), record(A)),
        (record(A, name="z", aliases=["r"]), record(A)),
        (record(A, namespace="x"), record(A, namespace="y")),
        (enum("x", "y"), enum("x")),
        (enum("x", default="x"), enum("x", "y")),
        (["string", "int"], ["int", "string"]),
        ("int", ["int"]),
        ({"type": "array", "items": "double"}, {"type": "array", "items": "int"}),
        ({"type": "map", "values": record(A)}, {"type": "map", "values": record(A, B)}),
        ({"type": "bytes", "logicalType": "decimal"}, "bytes"),
        ("string", "bytes"),
        (LINKED, LINKED),
        (record(A), record(A, name="other")),
        (record(field("a", record(A, name="i"))), record(field("a", record(A, name="j")))),
        ({"type": "array", "items": record(A)}, {"type": "array", "items": record(A, name="o")}),
        (["null", record(A)], record(A, name="other")),
        (["null", record(A)], ["null", record(A, name="other")]),
        (["null", record(B), record(A, name="s")], record(A, name="other")),
        (LINKED, record(field("next", ["null", "other"]), A, name="other")),
    ],
)
def test_what_can_be_read(reader: Any, writer: Any) -> None:
    assert why(reader, writer) is None


@pytest.mark.parametrize(
    ("reader", "writer", "said"),
    [
        (record(A, B), record(A), "r.b is new and has no default"),
        (record(field("a", "string")), record(A), "r.a changed from int to string"),
        (record(A), record(field("a", "long")), "r.a changed from long to int"),
        (record(A), record(field("a", ["null", "int"])), "r.a changed from null to int"),
        (record(A, B), record(A, name="other"), "r.b is new"),
        (enum("x"), enum("x") | {"name": "other"}, "was other, is e"),
        (record(field("a", enum("x"))), record(field("a", enum("x") | {"name": "o"})), "was o"),
        (
            {"type": "fixed", "name": "f", "size": 4},
            {"type": "fixed", "name": "g", "size": 4},
            "was g, is f",
        ),
        (["null", enum("x")], enum("x") | {"name": "other"}, "no branch for enum"),
        (["null", record(B)], record(A, name="other"), "no branch for record"),
        ([record(A, B), record(A, name="s")], record(A), "r.b is new"),
        (enum("x"), enum("x", "y"), "lacks y"),
        (["null", "int"], "string", "no branch for string"),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "from map to array"),
        (
            {"type": "fixed", "name": "f", "size": 4},
            {"type": "fixed", "name": "f", "size": 8},
            "changed size",
        ),
        (record(field("next", ["null", "r"]), B), LINKED, "r.b is new"),
    ],
)
def test_what_cannot_be_read(reader: Any, writer: Any, said: str) -> None:
    assert said in str(why(reader, writer))


def test_a_record_that_no_branch_could_read_is_not_readable_later() -> None:
    inner = record(B, name="i")
    reader = record(field("x", ["null", inner]), field("y", "i"))
    writer = record(field("x", ["null", record(A, name="i")]), field("y", "i"))
    assert why(reader, writer) is not None


def test_what_was_readable_on_a_false_assumption_is_looked_at_again() -> None:
    """`back` is found readable while the branch that contains it is assumed to be."""
    back = record(field("up", ["null", "u"]), name="back")
    branches = [record(field("b", back), B, name="u"), record(name="anything")]
    reader = record(field("x", branches), field("y", "back"))
    its = record(field("up", "v"), name="its")
    writer = record(field("x", record(field("b", its), name="v")), field("y", "its"))
    assert "back.up has no branch" in str(why(reader, writer))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "5",
        '"nobody"',
        '{"type": "record", "name": "r"}',
        '{"type": "record", "fields": []}',
        '{"type": "record", "name": "r", "fields": [5]}',
        '{"type": "record", "name": "r", "fields": [{"name": "a"}]}',
        '{"type": "record", "name": "r", "aliases": 5, "fields": []}',
        '{"type": "enum", "name": "e", "symbols": [[]]}',
        '{"type": "array"}',
        '{"type": 5}',
        "[" * 5000,
        '{"type":' * 900 + '"int"' + "}" * 900,
        " " * MAX_SCHEMA_BYTES + '"int"',
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(NotAvro):
        parse(text.encode())


def test_schemas_that_would_take_long_are_not_compared() -> None:
    arrays: Any = "int"
    for _ in range(10):
        arrays = [{"type": "array", "items": arrays}, {"type": "map", "values": arrays}, "null"]
    assert "too complex" in str(why(arrays, arrays))


def test_schemas_of_very_many_parts_are_not_looked_into() -> None:
    with pytest.raises(NotAvro, match="parts"):
        parse(b'["int",' + b"[]," * MAX_PARTS + b'"int"]')


def test_many_other_names_of_a_record_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    writer: Any = [record(name=f"w{number}") for number in range(300)]
    reader = record(aliases=[f"x{n}" for n in range(3000)] + [f"w{n}" for n in range(300)])
    looked_at = []
    short = avro._short
    monkeypatch.setattr(avro, "_short", lambda name: looked_at.append(name) or short(name))
    assert why(reader, writer) is None
    assert len(looked_at) < 20_000  # not 3000 x 300


def test_an_enum_of_many_fields_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, looked = [], avro._why_not_enum
    monkeypatch.setattr(avro, "_why_not_enum", lambda *both: compared.append(1) or looked(*both))
    first = field("f", {**enum("x", "y"), "doc": "of many"})
    fields = [first, *(field(f"f{number}", "e") for number in range(100))]
    assert why(record(*fields), record(*fields[:50], *fields[50:], A)) is None
    assert len(compared) == 1


def test_new_fields_and_their_other_names_are_counted() -> None:
    news = [field(f"n{number}", default=0) for number in range(40)]
    reader: Any = [record(*news, B, name=f"r{number}") for number in range(60)]
    reader.append(record(name="last", aliases=[f"w{number}" for number in range(60)]))
    for each in reader[:-1]:
        each["aliases"] = [f"w{number}" for number in range(60)]
    writer: Any = [record(A, name=f"w{number}") for number in range(60)]
    assert "too complex" in str(why(reader, writer))


def test_a_type_in_many_wrappings_is_that_type() -> None:
    wrapped: Any = "int"
    for _ in range(50):
        wrapped = {"type": wrapped}
    assert why(wrapped, "int") is None
    assert why(record(field("a", wrapped)), record(field("a", "string"))) is not None
