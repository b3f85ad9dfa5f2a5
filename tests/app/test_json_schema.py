"""Whether a value matches a schema, and the message if it does not."""

from typing import Any

import pytest

from pybroker.base.json_schema import (
    COUNT,
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    any_of,
    choice,
    exactly,
    list_of,
    map_of,
    misfit,
    or_null,
    record,
    taken,
    whole,
    without_text,
)

POINT = record("Point", {"x": WHOLE, "y": WHOLE, "name": TEXT}, optional=("name",))


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, WHOLE),
        (1, NUMBER),
        (1.5, NUMBER),
        (True, TRUTH),
        (0, COUNT),
        ("b", choice("a", "b")),
        ([], exactly([])),
        (["a"], list_of(TEXT, 1)),
        ({"a": 1}, map_of(WHOLE)),
        (None, or_null(TEXT)),
        (None, or_null(choice("a"))),
        (None, or_null(POINT)),
        ({"x": 1, "y": 2}, POINT),
        ({"x": 1, "y": 2, "name": "p"}, POINT),
        ({"a": None, "unknown": [1]}, taken({"a": TEXT})),
        ("x", any_of(WHOLE, TEXT)),
    ],
)
def test_what_fits(value: Any, schema: Schema) -> None:
    assert misfit(value, schema) is None


@pytest.mark.parametrize(
    ("value", "schema", "why"),
    [
        (True, WHOLE, "The body must be a whole number"),
        (1.0, WHOLE, "The body must be a whole number"),
        (1, TRUTH, "The body must be true or false"),
        (0, exactly(False), "The body must be one of: False"),
        (None, TEXT, "The body must be text"),
        (-1, COUNT, "The body must be at least 0"),
        (9, whole(0, 8), "The body must be at most 8"),
        ("c", choice("a", "b"), "The body must be one of: a, b"),
        ([1, "a"], list_of(WHOLE), "The body[1] must be a whole number"),
        ([1, 2], list_of(WHOLE, 1), "The body must be at most 1 long"),
        ({"a": "b"}, map_of(WHOLE), "The body: a must be a whole number"),
        ({"a": 1, "b": 2}, map_of(WHOLE, 1), "The body must have at most 1 properties"),
        ({"x": 1}, POINT, "The body must have y"),
        ({"x": 1, "y": 2, "z": 3}, POINT, "The body must not have z"),
        ({}, taken({"a": TEXT}, required=("a",)), "The body must have a"),
        ({"a": None}, taken({"a": TEXT}, required=("a",)), "The body: a must be text"),
        ({"a": 1}, taken({"a": TEXT}), "The body: a must be text or null"),
        (1.5, any_of(WHOLE, TEXT), "The body must be a whole number, or The body must be text"),
    ],
)
def test_what_does_not_fit_is_told(value: Any, schema: Schema, why: str) -> None:
    assert misfit(value, schema) == why


@pytest.mark.parametrize(
    ("value", "schema", "read"),
    [
        ("3", WHOLE, 3),
        (" -3 ", WHOLE, -3),
        ("3", NUMBER, 3),
        ("1.5e2", NUMBER, 150.0),
        ("true", TRUTH, True),
        ("3", TEXT, "3"),
        ("3", any_of(WHOLE, TEXT), "3"),
        ("3", any_of(WHOLE, POINT), 3),
        ({"x": "1", "y": "2"}, any_of(WHOLE, POINT), {"x": 1, "y": 2}),
        ("3", or_null(WHOLE), 3),
        (None, or_null(WHOLE), None),
        (["1", 2], list_of(WHOLE), [1, 2]),
        (["1"], list_of(TEXT), ["1"]),
        ({"a": "1"}, map_of(WHOLE), {"a": 1}),
        ({"a": "1"}, map_of(TEXT), {"a": "1"}),
        ({"a": "1", "unknown": "2"}, taken({"a": WHOLE}), {"a": 1, "unknown": "2"}),
        ({"p": {"x": "1", "y": 2}}, taken({"p": POINT}), {"p": {"x": 1, "y": 2}}),
        ("9223372036854775807", WHOLE, 2**63 - 1),
    ],
    ids=repr,
)
def test_text_that_stands_for_a_number_is_one_where_one_is_wanted(
    value: Any, schema: Schema, read: Any
) -> None:
    found = without_text(value, schema)
    assert (found, type(found)) == (read, type(read))
    assert misfit(found, schema) is None


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("", WHOLE),
        ("1.5", WHOLE),
        ("three", WHOLE),
        ("1_000", WHOLE),
        ("\u0663", WHOLE),
        ("9" * 5000, WHOLE),
        ("NaN", NUMBER),
        ("Infinity", NUMBER),
        ("yes", TRUTH),
        ("1", TRUTH),
        ({"x": "1"}, POINT),
        ("3", exactly(3)),
    ],
    ids=lambda value: str(value)[:20],
)
def test_text_that_stands_for_no_number_still_does_not_fit(value: Any, schema: Schema) -> None:
    assert misfit(without_text(value, schema), schema) is not None
