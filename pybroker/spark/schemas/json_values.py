"""JSON values of one schema, parsed together. Where one is no JSON, each is parsed by itself, and
those that are none are null, as Spark's own JSON source has it."""

import base64
import binascii
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from pybroker.spark.columns.arrays import binaries
from pybroker.spark.columns.fields import Data, Slices
from pybroker.spark.schemas.avro import Node

_NOT_OF_SCHEMA: Final = (ValueError, TypeError, AttributeError, pa.ArrowException)
_LOGICAL_UNITS: Final = {"timestamp-millis": "ms", "timestamp-micros": "us"}


def read_json(data: Data, slices: Slices, node: Node) -> pa.Array:
    """A record of each row; null for what is none."""
    texts = binaries(data, slices)
    kind = _physical(node)
    present = slices.length > 0
    try:
        lines = b"\n".join(text if text else b"{}" for text in texts.to_pylist())
        options = pj.ParseOptions(
            explicit_schema=pa.schema(list(kind)),
            unexpected_field_behavior="ignore",
            newlines_in_values=True,
        )
        table = pj.read_json(
            pa.BufferReader(lines), pj.ReadOptions(block_size=len(lines) + 1), options
        )
        if table.num_rows == len(texts):
            found = table.combine_chunks().to_struct_array().combine_chunks()
            return _with_meaning(found.take(_present(present)), node)
    except pa.ArrowException:
        pass  # Some row is no JSON of this schema, or it has a map, which Arrow does not parse.
    rows = [_parsed(text, node) for text in texts.to_pylist()]
    try:
        found = pa.array(rows, kind)
    except _NOT_OF_SCHEMA:
        found = pa.array([row if _fits(row, kind) else None for row in rows], kind)
    return _with_meaning(found, node)


def _present(present: Any) -> pa.Array:
    return pa.array(np.arange(len(present)), mask=~present)


def _parsed(text: bytes | None, node: Node) -> Any:
    try:
        row = json.loads(text) if text else None
        return _arranged(row, node) if isinstance(row, dict) else None
    except _NOT_OF_SCHEMA:
        return None


def _arranged(value: Any, node: Node) -> Any:
    """As Arrow takes it: a map as pairs, and a decimal as text, though it be a number."""
    kind = node["type"]
    if kind == "union":
        branches = [each for each in node["branches"] if each["type"] != "null"]
        return _arranged(value, branches[0]) if branches else None
    if value is None:
        return None
    if kind in ("record", "error"):
        return {
            each["name"]: _arranged(value.get(each["name"]), each["node"])
            for each in node["fields"]
        }
    if kind == "array":
        return [_arranged(each, node["items"]) for each in value]
    if kind == "map":
        return [(key, _arranged(each, node["values"])) for key, each in value.items()]
    if node.get("logicalType") == "decimal":
        return str(value)
    return value


def _fits(row: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([row], kind)
    except _NOT_OF_SCHEMA:
        return False
    return True


def _physical(node: Node) -> pa.DataType:
    """What stands in the JSON."""
    kind = node["type"]
    if kind in ("record", "error"):
        return pa.struct([(each["name"], _physical(each["node"])) for each in node["fields"]])
    if kind == "array":
        return pa.list_(_physical(node["items"]))
    if kind == "map":
        return pa.map_(pa.string(), _physical(node["values"]))
    if kind == "union":
        branches = [each for each in node["branches"] if each["type"] != "null"]
        return _physical(branches[0]) if branches else pa.null()
    return {
        "null": pa.null(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
    }.get(kind, pa.string())


def _with_meaning(array: pa.Array, node: Node) -> pa.Array:
    """Times, dates and bytes out of the numbers and texts that stand for them."""
    kind, logical = node["type"], str(node.get("logicalType"))
    if kind in ("record", "error") and len(node["fields"]):
        children = [
            _with_meaning(array.field(index), each["node"])
            for index, each in enumerate(node["fields"])
        ]
        names = [each["name"] for each in node["fields"]]
        return pa.StructArray.from_arrays(children, names, mask=array.is_null())
    if kind == "union":
        branches = [each for each in node["branches"] if each["type"] != "null"]
        return _with_meaning(array, branches[0]) if branches else array
    if kind == "long" and logical in _LOGICAL_UNITS:
        return array.cast(pa.timestamp(_LOGICAL_UNITS[logical], "UTC")).cast(
            pa.timestamp("us", "UTC")
        )
    if kind == "int" and logical == "date":
        return array.cast(pa.date32())
    if kind in ("bytes", "fixed") and logical != "decimal":
        return pa.array([_unwrapped(each) for each in array.to_pylist()], pa.binary())
    return array


def _unwrapped(text: str | None) -> bytes | None:
    """Java's JSON has bytes in base64, Avro's as characters up to 255."""
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return text.encode("latin-1", errors="replace")
