"""JSON Schemas as plain data, and a check whether a value fits a schema.

The same declaration documents a body and validates it. `misfit` supports only the part of draft
2020-12 that is used here. Lists and objects have a maximum size.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeGuard

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
    """An object with arbitrary keys."""
    bound = {} if most is None else {"maxProperties": most}
    return {"type": "object", "additionalProperties": value, **bound}


def record(title: str, fields: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """An object with these fields, of which some are optional, and no others."""
    return {
        "type": "object",
        **({"title": title} if title else {}),
        "properties": dict(fields),
        "required": [name for name in fields if name not in set(optional)],
        "additionalProperties": False,
    }


def taken(fields: Mapping[str, Schema], required: Iterable[str] = (), title: str = "") -> Schema:
    """An object from a client: unknown fields are ignored, and optional ones may be null."""
    required = list(required)
    return {
        "type": "object",
        **({"title": title} if title else {}),
        "properties": {n: s if n in required else or_null(s) for n, s in fields.items()},
        **({"required": required} if required else {}),
    }


def fields(schema: Schema, names: str) -> dict[str, Schema]:
    """The space-separated `names`, all with the same schema."""
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


# -- values sent as text


def without_text(value: Any, schema: Schema) -> Any:
    """Converts strings to numbers and booleans where the schema does not accept a string: some
    clients send strings there, and Apache Pulsar's broker (Jackson) accepts them.
    """
    if "anyOf" in schema:
        return _without_text_of_any(value, schema["anyOf"])
    if isinstance(value, str):
        return _number_or_truth(value, schema.get("type"))
    if isinstance(value, list):
        items = schema.get("items")
        return [without_text(item, items) for item in value] if _is_more_than_text(items) else value
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        if _is_more_than_text(others):
            return {name: without_text(v, known.get(name, others)) for name, v in value.items()}
        named = {name: without_text(value[name], of) for name, of in known.items() if name in value}
        return value | named if named else value
    return value


def _is_more_than_text(schema: Schema | bool | None) -> TypeGuard[Schema]:
    """Whether converting could change anything; avoids useless walks over large values."""
    return isinstance(schema, dict) and bool(schema) and schema.get("type") != "string"


def _without_text_of_any(value: Any, schemas: list[Schema]) -> Any:
    """Unchanged if an alternative accepts the value; otherwise converted for the first alternative
    that accepts the result.
    """
    if any(misfit(value, schema) is None for schema in schemas):
        return value
    found = ((without_text(value, schema), schema) for schema in schemas)
    return next((each for each, schema in found if misfit(each, schema) is None), value)


def _number_or_truth(text: str, wanted: str | list[str] | None) -> Any:
    if wanted is None or _is_kind("string", wanted):
        return text
    said = text.strip()
    if _is_kind("integer", wanted) and _WHOLE.fullmatch(said):
        return int(said)
    if _is_kind("number", wanted) and _NUMBER.fullmatch(said):
        return float(said)
    if _is_kind("boolean", wanted) and said in ("true", "false"):
        return said == "true"
    return text


# -- does it fit?


def misfit(value: Any, schema: Schema, what: str = "The body") -> str | None:
    """A sentence that says why the value does not fit; None if it does."""
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
        return f"{what} must have at most {schema['maxProperties']} properties"
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{what} must have {', '.join(missing)}"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", ANYTHING)
    # Skip other keys if they may have any value: there may be many.
    for name in value if others != ANYTHING else [name for name in known if name in value]:
        inner = known.get(name, others)
        if inner is False:
            return f"{what} must not have {name[:80]}"
        if inner and (why := misfit(value[name], inner, f"{what}: {name[:80]}")) is not None:
            return why
    return None


_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,20}(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?")
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
