"""Avro by columns: the same record of many rows at once, field by field.

All rows of a schema are walked together: a field costs a few vector operations for all of them.
Where rows differ (a union's branch, the length of an array), equal rows continue together. The
result is Arrow arrays of Avro's own types; pybroker.spark.schemas.adapting converts them to what a
query requested.
"""

import decimal
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pybroker.spark.columns.arrays import binaries, texts, vector
from pybroker.spark.columns.fields import Data, Ints, NotParsed, Slices, varints

Node = Mapping[str, Any]
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
# Logical types: their unit in microseconds, and their time zone.
_TIMES: Final = {
    "timestamp-millis": (1000, "UTC"),
    "timestamp-micros": (1, "UTC"),
    "local-timestamp-millis": (1000, None),
    "local-timestamp-micros": (1, None),
}


def parse(schema: Any, names: dict[str, Node] | None = None, space: str = "") -> Node:
    """Normalises schemas: a dictionary with a type, names resolved. Raises NotParsed."""
    names = {} if names is None else names
    if isinstance(schema, list):
        return {"type": "union", "branches": [parse(each, names, space) for each in schema]}
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return {"type": schema}
        found = names.get(_full_name(schema, space)) or names.get(schema)
        if found is None:
            raise NotParsed(
                f"the schema refers to {schema}, which is not defined before it or is recursive"
            )
        return found
    kind = schema["type"]
    if not isinstance(kind, str) or (kind not in _PRIMITIVES and kind not in _COMPLEX):
        return parse(kind, names, space)
    return _COMPLEX[kind](schema, names, space) if kind in _COMPLEX else dict(schema)


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _space_of(schema: Node, space: str) -> str:
    """The namespace of a named type, and of the names in its definition."""
    within, dot, _ = str(schema["name"]).rpartition(".")
    return within if dot else str(schema.get("namespace", space))


def _record(schema: Node, names: dict[str, Node], space: str) -> Node:
    within = _space_of(schema, space)
    fields = [
        {
            "name": each["name"],
            "node": parse(each["type"], names, within),
            **({"default": each["default"]} if "default" in each else {}),
        }
        for each in schema["fields"]
    ]
    return _named({"type": "record", "fields": fields}, schema, names, space)


def _named(node: Node, schema: Node, names: dict[str, Node], space: str) -> Node:
    names[_full_name(schema["name"], _space_of(schema, space))] = node
    return node


def _same_named(schema: Node, names: dict[str, Node], space: str) -> Node:
    return _named(dict(schema), schema, names, space)


def _array(schema: Node, names: dict[str, Node], space: str) -> Node:
    return {"type": "array", "items": parse(schema["items"], names, space)}


def _map(schema: Node, names: dict[str, Node], space: str) -> Node:
    return {"type": "map", "values": parse(schema["values"], names, space)}


_COMPLEX: Final[Mapping[str, Callable[[Node, dict[str, Node], str], Node]]] = {
    "record": _record,
    "error": _record,
    "enum": _same_named,
    "fixed": _same_named,
    "array": _array,
    "map": _map,
}


# --- reading -------------------------------------------------------------------------------------


class Walk:
    """Reads rows that begin at `at` and end at `end`, in a padded buffer."""

    def __init__(self, data: Data, at: Ints, end: Ints) -> None:
        self.data = data
        self.at = at
        self.end = end

    def read(self, node: Node) -> pa.Array:
        """The value of each row; moves all rows past it. Raises NotParsed."""
        found = _READERS[node["type"]](self, node)
        self.check()
        return found

    def check(self) -> None:
        if (self.at > self.end).any():
            raise NotParsed("a value goes beyond its end")

    def long(self) -> Ints:
        value, self.at = varints(self.data, np.minimum(self.at, self.end))
        self.check()
        return (value.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(value & 1)

    def fixed(self, width: int, kind: str) -> npt.NDArray[Any]:
        self.at = self.at + width
        self.check()
        places = (self.at - width)[:, None] + np.arange(width)
        found: npt.NDArray[Any] = self.data[places].reshape(-1).view(kind)
        return found

    def slices(self) -> Slices:
        length = self.long()
        start = self.at
        if (length < 0).any() or (length > self.end - start).any():
            raise NotParsed("a string goes beyond the end of its value")
        self.at = start + length
        return Slices(start, length)

    def part(self, rows: Ints) -> "Walk":
        return Walk(self.data, self.at[rows], self.end[rows])


def _null(walk: Walk, node: Node) -> pa.Array:
    return pa.nulls(len(walk.at))


def _boolean(walk: Walk, node: Node) -> pa.Array:
    return vector(walk.fixed(1, "u1") != 0)


def _int(walk: Walk, node: Node) -> pa.Array:
    values, logical = walk.long(), node.get("logicalType")
    if logical == "date":
        return vector(values.astype(np.int32)).cast(pa.date32())
    return vector(values.astype(np.int32))


def _long(walk: Walk, node: Node) -> pa.Array:
    values, logical = walk.long(), node.get("logicalType")
    unit, zone = _TIMES.get(str(logical), (None, None))
    if unit is None:
        return vector(values)
    return vector(values * unit).cast(pa.timestamp("us", zone))


def _float(walk: Walk, node: Node) -> pa.Array:
    return vector(walk.fixed(4, "<f4"))


def _double(walk: Walk, node: Node) -> pa.Array:
    return vector(walk.fixed(8, "<f8"))


def _bytes(walk: Walk, node: Node) -> pa.Array:
    return _maybe_decimal(binaries(walk.data, walk.slices()), node)


def _fixed(walk: Walk, node: Node) -> pa.Array:
    width = np.full(len(walk.at), int(node["size"]), np.int64)
    start, walk.at = walk.at, walk.at + width
    walk.check()
    return _maybe_decimal(binaries(walk.data, Slices(start, width)), node)


def _maybe_decimal(values: pa.Array, node: Node) -> pa.Array:
    if node.get("logicalType") != "decimal":
        return values
    scale = int(node.get("scale", 0))
    with decimal.localcontext(prec=76):
        numbers = [
            decimal.Decimal(int.from_bytes(each, "big", signed=True)).scaleb(-scale)
            for each in values.to_pylist()
        ]
    return pa.array(numbers, pa.decimal128(int(node["precision"]), scale))


def _string(walk: Walk, node: Node) -> pa.Array:
    return texts(walk.data, walk.slices())


def _enum(walk: Walk, node: Node) -> pa.Array:
    chosen, symbols = walk.long(), node["symbols"]
    if ((chosen < 0) | (chosen >= len(symbols))).any():
        raise NotParsed("a value is not one of its enum's symbols")
    return pa.array(symbols, pa.string()).take(vector(chosen))


def _read_record(walk: Walk, node: Node) -> pa.Array:
    arrays = [walk.read(each["node"]) for each in node["fields"]]
    if not arrays:
        return pa.array([{}] * len(walk.at), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, [each["name"] for each in node["fields"]])


def _union(walk: Walk, node: Node) -> pa.Array:
    chosen, branches = walk.long(), node["branches"]
    if ((chosen < 0) | (chosen >= len(branches))).any():
        raise NotParsed("a value is not one of its union's branches")
    read: list[tuple[Ints, pa.Array]] = []
    for number, branch in enumerate(branches):
        rows = np.flatnonzero(chosen == number)
        if branch["type"] == "null":
            continue
        part = walk.part(rows)
        read.append((rows, part.read(branch)))
        walk.at[rows] = part.at
    members = [_spread(rows, array, len(chosen)) for rows, array in read]
    if len(members) == 1:
        return members[0]
    wide = _widened(branches)
    if wide is not None:
        merged = members[0].cast(wide)
        return merged.fill_null(members[1].cast(wide)) if len(members) == 2 else merged
    return pa.StructArray.from_arrays(members, [f"member{n}" for n in range(len(members))])


def _widened(branches: list[Node]) -> pa.DataType | None:
    """The wider of two numeric types, as in the pulsar-spark connector."""
    kinds = {each["type"] for each in branches} - {"null"}
    return {
        frozenset(("int", "long")): pa.int64(),
        frozenset(("float", "double")): pa.float64(),
    }.get(frozenset(kinds))


def _spread(rows: Ints, array: pa.Array, count: int) -> pa.Array:
    """The items at `rows` of `count`, and null elsewhere."""
    if len(rows) == count:
        return array
    place = np.zeros(count, np.int64)
    place[rows] = np.arange(len(rows))
    present = np.zeros(count, np.bool_)
    present[rows] = True
    if not len(rows):
        return pa.nulls(count, array.type)
    return array.take(vector(place, present))


def _read_array(walk: Walk, node: Node) -> pa.Array:
    rows, (items,) = _blocks(walk, [node["items"]])
    return pa.ListArray.from_arrays(_offsets(rows, len(walk.at)), items)


def _read_map(walk: Walk, node: Node) -> pa.Array:
    rows, (keys, values) = _blocks(walk, [{"type": "string"}, node["values"]])
    return pa.MapArray.from_arrays(_offsets(rows, len(walk.at)), keys, values)


def _offsets(rows: Ints, count: int) -> pa.Array:
    return vector(np.searchsorted(rows, np.arange(count + 1)).astype(np.int32))


def _blocks(walk: Walk, nodes: list[Node]) -> tuple[Ints, list[pa.Array]]:
    """The items of all rows, in order, and the row of each."""
    going = np.arange(len(walk.at))
    steps: list[tuple[Ints, list[pa.Array]]] = []
    left = _block(walk, going)
    while True:
        going, left = going[left > 0], left[left > 0]
        if not len(going):
            break
        part = walk.part(going)
        steps.append((going, [part.read(node) for node in nodes]))
        walk.at[going] = part.at
        left = left - 1
        ended = left == 0
        if ended.any():
            left[ended] = _block(walk, going[ended])
    if not steps:
        empty = Walk(walk.data, walk.at[:0], walk.end[:0])
        return np.zeros(0, np.int64), [empty.read(node) for node in nodes]
    rows = np.concatenate([each for each, _ in steps])
    order = np.argsort(rows, kind="stable")
    columns = [
        pa.concat_arrays([arrays[index] for _, arrays in steps]).take(vector(order))
        for index in range(len(nodes))
    ]
    return rows[order], columns


def _block(walk: Walk, rows: Ints) -> Ints:
    """How many items the next block of each row has; 0 at the end of its items."""
    part = walk.part(rows)
    count = part.long()
    with_size = np.flatnonzero(count < 0)
    if len(with_size):
        sized = part.part(with_size)
        sized.long()
        part.at[with_size] = sized.at
        count = np.abs(count)
    # An item has at least one byte, except types without content.
    if (count > np.maximum(part.end - part.at, 0) + 1).any():
        raise NotParsed("a block claims more items than its value has bytes")
    walk.at[rows] = part.at
    return count


_READERS: Final[Mapping[str, Callable[[Walk, Node], pa.Array]]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
    "fixed": _fixed,
    "enum": _enum,
    "record": _read_record,
    "error": _read_record,
    "union": _union,
    "array": _read_array,
    "map": _read_map,
}
