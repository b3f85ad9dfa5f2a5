"""JSON Schemas as plain data, and whether a value fits one.

The same declaration says what a body is and refuses what is not. `misfit` reads what is written
here of draft 2020-12, no more. What a schema takes is bounded: `most` of a list and of an object.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Schema = dict[str, Any]

LONG: Final = 2**63 - 1
_MOST_ITEMS: Final = 1000

ANYTHING: Final[Schema] = {}
TEXT: Final[Schema] = {"type": "string"}
TRUTH: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "number"}
WHOLE: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
BYTES: Final[Schema] = {"type": "string", "format": "binary"}
OBJECT: Final[Schema] = {"type": "object"}


def whole(least: int, most: int = LONG) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def choice(*choices: str) -> Schema:
    return {"type": "string", "enum": list(choices)}


def exactly(value: Any) -> Schema:
    return {"enum": [value]}


def list_of(item: Schema, most: int | None = _MOST_ITEMS) -> Schema:
    bound = {} if most is None else {"maxItems": most}
    return {"type": "array", "items": item, **bound}


def map_of(value: Schema, most: int | None = _MOST_ITEMS) -> Schema:
    """By names of any kind."""
    bound = {} if most is None else {"maxProperties": most}
    return {"type": "object", "additionalProperties": value, **bound}


def record(title: str, fields: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """All of these fields but the optional ones, and no others."""
    return {
        "type": "object",
        **({"title": title} if title else {}),
        "properties": dict(fields),
        "required": [name for name in fields if name not in set(optional)],
        "additionalProperties": False,
    }


def taken(fields: Mapping[str, Schema], required: Iterable[str] = (), title: str = "") -> Schema:
    """Of what a client sends: others are ignored, and each may be null unless it is required."""
    required = list(required)
    return {
        "type": "object",
        **({"title": title} if title else {}),
        "properties": {n: s if n in required else or_null(s) for n, s in fields.items()},
        **({"required": required} if required else {}),
    }


def fields(schema: Schema, names: str) -> dict[str, Schema]:
    """Several of one kind."""
    return dict.fromkeys(names.split(), schema)


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def or_null(schema: Schema) -> Schema:
    if not schema or is_nullable(schema):
        return schema
    if isinstance(schema.get("type"), str) and "title" not in schema and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return any_of(schema, {"type": "null"})


def is_nullable(schema: Schema) -> bool:
    return misfit(None, schema) is None


# -- does it fit?


def misfit(value: Any, schema: Schema, what: str = "The body") -> str | None:
    """Why it does not, as a sentence; None if it does."""
    if "anyOf" in schema:
        return _misfit_of_all(value, schema["anyOf"], what)
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        return f"{what} must be one of: {', '.join(map(str, schema['enum']))}"
    wanted, kind = schema.get("type"), _kind_of(value)
    if wanted is not None and not _is_kind(kind, wanted):
        return f"{what} must be {_in_words(wanted)}"
    look = _INSIDE.get(kind)
    return None if look is None else look(value, schema, what)


def _misfit_of_all(value: Any, schemas: list[Schema], what: str) -> str | None:
    whys = [misfit(value, schema, what) for schema in schemas]
    found = [why for why in whys if why is not None]
    return None if len(found) < len(whys) else ", or ".join(dict.fromkeys(found))


def _same(value: Any, choice: Any) -> bool:
    return type(value) is type(choice) and bool(value == choice)


def _misfit_number(value: float, schema: Schema, what: str) -> str | None:
    if value < schema.get("minimum", value):
        return f"{what} must be at least {schema['minimum']}"
    if value > schema.get("maximum", value):
        return f"{what} must be at most {schema['maximum']}"
    return None


def _misfit_list(value: list[Any], schema: Schema, what: str) -> str | None:
    if len(value) > schema.get("maxItems", len(value)):
        return f"{what} must be at most {schema['maxItems']} long"
    items = schema.get("items")
    if not items:
        return None
    whys = (misfit(item, items, f"{what}[{index}]") for index, item in enumerate(value))
    return next((why for why in whys if why is not None), None)


def _misfit_object(value: dict[str, Any], schema: Schema, what: str) -> str | None:
    if len(value) > schema.get("maxProperties", len(value)):
        return f"{what} must have at most {schema['maxProperties']} parts"
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{what} must have {', '.join(missing)}"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", ANYTHING)
    # What others there are is of no interest where they may be anything, and they may be many.
    for name in value if others != ANYTHING else [name for name in known if name in value]:
        inner = known.get(name, others)
        if inner is False:
            return f"{what} must not have {name[:80]}"
        if inner and (why := misfit(value[name], inner, f"{what}: {name[:80]}")) is not None:
            return why
    return None


_INSIDE: Final[Mapping[str, Callable[[Any, Schema, str], str | None]]] = {
    "integer": _misfit_number,
    "number": _misfit_number,
    "array": _misfit_list,
    "object": _misfit_object,
}
_KINDS: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}
_WORDS: Final = {
    "null": "null",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "array": "a list",
    "object": "an object",
}


def _kind_of(value: Any) -> str:
    return _KINDS[type(value)]


def _is_kind(kind: str, wanted: str | list[str]) -> bool:
    allowed = (wanted,) if isinstance(wanted, str) else wanted
    return kind in allowed or (kind == "integer" and "number" in allowed)


def _in_words(wanted: str | list[str]) -> str:
    return " or ".join(_WORDS[kind] for kind in ([wanted] if isinstance(wanted, str) else wanted))
