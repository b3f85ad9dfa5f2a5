"""JSON values of one schema, parsed together. If one is not JSON, each is parsed separately, and
those that are not JSON become null, as in Spark's own JSON source."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from pybroker.spark.columns.arrays import binaries, vector
from pybroker.spark.columns.fields import Data, NotParsed, Slices
from pybroker.spark.schemas.adapting import nested
from pybroker.spark.schemas.avro import Node

_NOT_OF_SCHEMA: Final = (
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    pa.ArrowException,
)
# Logical types: their unit, and their time zone.
_TIMES: Final = {
    "timestamp-millis": ("ms", "UTC"),
    "timestamp-micros": ("us", "UTC"),
    "local-timestamp-millis": ("ms", None),
    "local-timestamp-micros": ("us", None),
}
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_WIDER: Final[Mapping[frozenset[str], Node]] = {
    frozenset(("int", "long")): {"type": "long"},
    frozenset(("float", "double")): {"type": "double"},
}


def read_json(data: Data, slices: Slices, node: Node) -> pa.Array:
    """A record for each row; null if it does not parse."""
    texts = binaries(data, slices).to_pylist()
    try:
        return _with_meaning(_parsed_together(texts, node), node)
    except _NOT_OF_SCHEMA:
        pass  # Some row is not JSON of this schema, or has a map, which Arrow does not parse.
    rows = [_parsed(text, node) for text in texts]
    try:
        return _made(rows, node)
    except _NOT_OF_SCHEMA:
        return _made([row if _fits(row, node) else None for row in rows], node)


def _parsed_together(texts: Sequence[bytes | None], node: Node) -> pa.Array:
    """Raises ValueError, ArrowException if each must be parsed separately."""
    whole = [text.strip() if text else b"{}" for text in texts]
    if not all(text[:1] == b"{" and text[-1:] == b"}" for text in whole):
        raise ValueError("values that are not objects would shift rows")
    lines = b"\n".join(whole)
    options = pj.ParseOptions(
        explicit_schema=pa.schema(list(_physical(node))),
        unexpected_field_behavior="ignore",
        newlines_in_values=True,
    )
    reading = pj.ReadOptions(block_size=len(lines) + 1)
    table = pj.read_json(pa.BufferReader(lines), reading, options)
    if table.num_rows != len(texts):
        raise ValueError("a row contains several objects")
    found = table.combine_chunks().to_struct_array().combine_chunks()
    return found.take(_present(np.array([bool(text) for text in texts], np.bool_)))


def _present(present: Any) -> pa.Array:
    return vector(np.arange(len(present)), present)


def _parsed(text: bytes | None, node: Node) -> Any:
    try:
        row = json.loads(text, parse_float=Decimal) if text else None
        return _arranged(row, node) if isinstance(row, dict) else None
    except _NOT_OF_SCHEMA:
        return None


def _arranged(value: Any, node: Node) -> Any:
    """The value in Arrow's form: a map as pairs, and a decimal as text even if it is a number.
    Raises TypeError, AttributeError."""
    kind = node["type"]
    if kind == "union":
        return _arranged(value, _only(node))
    if value is None or kind == "null":
        return None
    if kind in ("record", "error"):
        return {
            each["name"]: _arranged(value.get(each["name"]), each["node"])
            for each in node["fields"]
        }
    if kind == "array":
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not an array")
        return [_arranged(each, node["items"]) for each in value]
    if kind == "map":
        return [(key, _arranged(each, node["values"])) for key, each in value.items()]
    if node.get("logicalType") == "decimal":
        return str(value)
    if isinstance(value, Decimal) or (kind in ("float", "double") and value in _NO_NUMBERS):
        return float(value)
    return value


def _made(rows: Sequence[Any], node: Node) -> pa.Array:
    return _with_meaning(pa.array(rows, _physical(node)), node)


def _fits(row: Any, node: Node) -> bool:
    try:
        _made([row], node)
    except _NOT_OF_SCHEMA:
        return False
    return True


def require_readable(node: Node) -> None:
    """Raises NotParsed for a type that JSON values cannot have here."""
    _physical(node)


def _only(union: Node) -> Node:
    """The type of values that are not null. Raises NotParsed if only Avro distinguishes several."""
    branches: list[Node] = [each for each in union["branches"] if each["type"] != "null"]
    if len(branches) < 2:
        return branches[0] if branches else {"type": "null"}
    kinds = frozenset(str(each["type"]) for each in branches)
    if (wider := _WIDER.get(kinds)) is None:
        raise NotParsed(f"JSON does not distinguish {', '.join(sorted(kinds))}")
    return wider


def _physical(node: Node) -> pa.DataType:
    """The type used in the JSON."""
    kind = node["type"]
    if kind in ("record", "error"):
        return pa.struct([(each["name"], _physical(each["node"])) for each in node["fields"]])
    if kind == "array":
        return pa.list_(_physical(node["items"]))
    if kind == "map":
        return pa.map_(pa.string(), _physical(node["values"]))
    if kind == "union":
        return _physical(_only(node))
    return {
        "null": pa.null(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
    }.get(kind, pa.string())


def _with_meaning(array: pa.Array, node: Node) -> pa.Array:
    """Converts numbers and strings to the times, dates, decimals and bytes they encode."""
    kind, logical = node["type"], str(node.get("logicalType"))
    if kind in ("record", "error") and len(node["fields"]):
        children = [
            _with_meaning(child, each["node"])
            for child, each in zip(array.flatten(), node["fields"], strict=True)
        ]
        names = [each["name"] for each in node["fields"]]
        return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    if kind == "union":
        return _with_meaning(array, _only(node))
    if kind == "array":
        values = array.values
        items = _with_meaning(values, node["items"])
        return array if items is values else nested(array, pa.list_(items.type), items)
    if kind == "map":
        values = array.items
        items = _with_meaning(values, node["values"])
        whole = pa.map_(pa.string(), items.type)
        return array if items is values else nested(array, whole, array.keys, items)
    if kind == "long" and logical in _TIMES:
        unit, zone = _TIMES[logical]
        return array.cast(pa.timestamp(unit, zone)).cast(pa.timestamp("us", zone))
    if kind == "int" and logical == "date":
        return array.cast(pa.date32())
    if kind in ("bytes", "fixed"):
        if logical == "decimal":
            return _decimals(array, int(node["precision"]), int(node.get("scale", 0)))
        return pa.array([_unwrapped(each) for each in array.to_pylist()], pa.binary())
    return array


def _decimals(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Rounds as Spark does. Raises ArithmeticError. Arrow's own cast turns a number with too many
    digits into a different one."""
    context = Context(precision, ROUND_HALF_UP)
    last = Decimal(1).scaleb(-scale)
    numbers = [
        None if each is None else Decimal(each).quantize(last, context=context)
        for each in array.to_pylist()
    ]
    if any(each is not None and each.is_nan() for each in numbers):
        raise ValueError("a decimal must be a number")
    return pa.array(numbers, pa.decimal128(precision, scale))


def _unwrapped(text: str | None) -> bytes | None:
    """Java's JSON encodes bytes in base64, Avro's as characters up to 255."""
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return text.encode("latin-1", errors="replace")
