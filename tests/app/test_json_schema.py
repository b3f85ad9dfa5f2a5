"""Whether a value fits a schema, and what is said of one that does not."""

from typing import Any

import pytest

from pybroker.json_schema import (
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
        ({"a": 1, "b": 2}, map_of(WHOLE, 1), "The body must have at most 1 parts"),
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
