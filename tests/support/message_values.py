"""Values for the fields of Kafka's messages, drawn by Hypothesis."""

from typing import Any

from hypothesis import strategies as st

from pybroker.kafka.codec.message_table import Field

# Names that a test may give to what is there: so the values are not all refused at the first look.
NAMES = ("orders", "group", "producer", "member", "0")


def _number(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.sampled_from((0, 1, 2, -1))


WHOLE = {
    "bool": st.booleans(),
    "i8": _number(8),
    "i16": _number(16),
    "u16": st.integers(0, 2**16 - 1),
    "i32": _number(32),
    "i64": _number(64),
    "f64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.text(max_size=8) | st.sampled_from(NAMES),
    "bytes": st.binary(max_size=8),
    "records": st.binary(max_size=8),
}


def values(field: Field, version: int) -> st.SearchStrategy[Any]:
    if field.kind == "[]":
        found: st.SearchStrategy[Any] = st.lists(bodies(field.fields, version), max_size=2)
    elif field.kind == "{}":
        found = bodies(field.fields, version)
    elif field.kind.startswith("[]"):
        found = st.lists(WHOLE[field.kind[2:]], max_size=2)
    else:
        found = WHOLE[field.kind]
    return st.none() | found if version in field.nullable else found


def bodies(fields: list[Field], version: int) -> st.SearchStrategy[dict[str, Any]]:
    """A value for each field of this version."""
    there = [field for field in fields if version in field.versions]
    return st.fixed_dictionaries({field.name: values(field, version) for field in there})
