"""Types: from an Avro schema to Spark's, and from decoded arrays to the requested types.

A schema may have changed since a message was written: fields are matched by name, missing ones are
null, and numbers widen. A conversion that would change a value is an error.
"""

import inspect
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pybroker.spark.columns.arrays import as_texts
from pybroker.spark.schemas.avro import Node

_SIMPLE: Final[dict[str, DataType]] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "fixed": BinaryType(),
    "enum": StringType(),
}
_LOGICAL: Final[dict[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type that Spark expects from a source."""
    return to_arrow_type(kind, **_IN_UTC)


def spark_type(node: Node) -> DataType:
    """Everything is nullable: a message of another version may lack it."""
    kind = node["type"]
    if kind in ("record", "error"):
        return StructType([StructField(f["name"], spark_type(f["node"])) for f in node["fields"]])
    if kind == "array":
        return ArrayType(spark_type(node["items"]))
    if kind == "map":
        return MapType(StringType(), spark_type(node["values"]))
    if kind == "union":
        return _of_union([each for each in node["branches"] if each["type"] != "null"])
    logical = node.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return DecimalType(int(node["precision"]), int(node.get("scale", 0)))
    return _LOGICAL.get((kind, str(logical)), _SIMPLE[kind])


def _of_union(branches: list[Node]) -> DataType:
    if len(branches) == 1:
        return spark_type(branches[0])
    kinds = {each["type"] for each in branches}
    if kinds == {"int", "long"}:
        return LongType()
    if kinds == {"float", "double"}:
        return DoubleType()
    members = [StructField(f"member{n}", spark_type(each)) for n, each in enumerate(branches)]
    return StructType(members)


def read_as(written: Node, wanted: Node) -> Node:
    """The written schema, with logical times from the wanted one if only one of them marks a number
    as a time: for Avro, adding or removing such a mark is no change."""
    kind = written["type"]
    if kind == "union":
        return {"type": kind, "branches": [read_as(each, wanted) for each in written["branches"]]}
    alike = _alike(wanted, kind)
    if alike is None:
        return written
    if kind in ("record", "error"):
        nodes = {each["name"]: each["node"] for each in alike["fields"]}
        fields = [
            {**each, "node": read_as(each["node"], nodes.get(each["name"], each["node"]))}
            for each in written["fields"]
        ]
        return {**written, "fields": fields}
    if kind in ("array", "map"):
        of = "items" if kind == "array" else "values"
        return {**written, of: read_as(written[of], alike[of])}
    if kind in ("int", "long") and _is_time(written) != _is_time(alike):
        return {**written, "logicalType": alike.get("logicalType")}
    return written


def _alike(wanted: Node, kind: str) -> Node | None:
    branches = wanted["branches"] if wanted["type"] == "union" else [wanted]
    return next((each for each in branches if each["type"] == kind), None)


def _is_time(node: Node) -> bool:
    return (node["type"], str(node.get("logicalType"))) in _LOGICAL


def adapted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Raises pa.ArrowInvalid, pa.ArrowNotImplementedError if the types cannot be converted."""
    if array.type == wanted:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type):
        return _struct(array, wanted)
    if pa.types.is_map(wanted) and pa.types.is_map(array.type):
        return nested(array, wanted, array.keys, adapted(array.items, wanted.item_type))
    if pa.types.is_list(wanted) and pa.types.is_list(array.type):
        return nested(array, wanted, adapted(array.values, wanted.value_type))
    return _cast(array, wanted)


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    given, is_a = array.type, pa.types
    if is_a.is_integer(given) and is_a.is_floating(wanted):
        return array.cast(wanted, safe=False)  # Avro's own widening may round.
    if is_a.is_binary(given) and is_a.is_string(wanted):
        return as_texts(array)
    if not _is_meant(given, wanted):
        raise pa.ArrowNotImplementedError("the schemas differ")
    found = array.cast(wanted)
    if wanted == pa.float32() and _infinities(found) > _infinities(array):
        raise pa.ArrowInvalid("a number is too large")
    return found


def _is_meant(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Arrow converts between more types than is meaningful: a plain number has no unit of time, and
    bytes are not digits."""
    is_a = pa.types
    if is_a.is_binary(given):
        return False
    if is_a.is_integer(given) and is_a.is_timestamp(wanted):
        return False
    if is_a.is_timestamp(given) and is_a.is_integer(wanted):
        return False
    if is_a.is_timestamp(given) and is_a.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)  # A local time has no time zone.
    return not is_a.is_boolean(wanted)


def _infinities(array: pa.Array) -> int:
    if not pa.types.is_floating(array.type):
        return 0
    return int(np.isinf(array.to_numpy(zero_copy_only=False)).sum())


def _struct(array: pa.StructArray, wanted: pa.StructType) -> pa.Array:
    children = []
    for field in wanted:
        index = array.type.get_field_index(field.name)
        if index < 0:
            children.append(pa.nulls(len(array), field.type))
        else:
            children.append(adapted(array.field(index), field.type))
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())


def nested(array: pa.Array, wanted: pa.DataType, *children: pa.Array) -> pa.Array:
    """Lists and maps with the same offsets over converted children."""
    offsets = array.offsets
    if array.null_count:
        present = array.is_valid().to_pylist()
        offsets = pa.array(offsets.to_pylist(), pa.int32(), mask=None)
        marked = [o if p else None for o, p in zip(offsets.to_pylist(), present, strict=False)]
        offsets = pa.array([*marked, array.offsets[-1].as_py()], pa.int32())
    build = pa.MapArray if pa.types.is_map(wanted) else pa.ListArray
    return build.from_arrays(offsets, *children).cast(wanted)
