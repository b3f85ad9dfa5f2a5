"""Encodes JSON values in Avro's binary encoding, and decodes them: one function per schema type.

The values are typed on a command line or sent over HTTP, so the code is small rather than fast.
Bytes and fixed are strings of one character per byte, as Avro defines. A union's value may be an
object that names its branch, as in Avro's JSON encoding; otherwise the first branch that accepts
the value is used.
"""

import json
import struct
import sys
import time
from collections.abc import Callable, Mapping
from reprlib import repr as shortly
from typing import Any, Final

Names = dict[str, Any]
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_INTEGERS: Final = {"int": 31, "long": 63}
_MAX_DEPTH: Final = 200
_MAX_EMPTY_VALUES: Final = 10_000
_SHOWN_BRANCHES: Final = 8
_STEPS_A_BREATH: Final = 1000
_SHOWN_CHARS: Final = 80
_MAX_NAME_CHARS: Final = 1024  # including its namespace: a name may be repeated with every value
_PRIMITIVE: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
)


class NotAvro(ValueError):
    """The value does not fit its schema."""


class TooMuchWork(NotAvro):
    """Deciding whether the value fits its schema is too expensive."""


class Codec:
    """Encodes and decodes values of one schema. Raises NotAvro if the definition is invalid."""

    def __init__(self, definition: str | bytes) -> None:
        self._names: Names = {}
        self.steps_left = sys.maxsize  # of `encode`
        try:
            self._schema = json.loads(definition)
            self._learn(self._schema, "")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotAvro(f"{str(definition)[:80]} is not an Avro schema: {error!r}") from None

    def encode(self, value: Any, most_steps: int = sys.maxsize) -> bytes:
        """Raises NotAvro; also if this takes more than `most_steps`, as unions may require."""
        out = bytearray()
        self.steps_left = most_steps
        try:
            self._write(self._schema, value, out)
        except (LookupError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise NotAvro(f"the value does not fit its schema: {error!r}") from None
        return bytes(out)

    def decode(self, data: bytes, most_values: int = sys.maxsize) -> Any:
        """Raises NotAvro; also if the message has more than `most_values` values. Each part of a
        record, array or map counts.
        """
        reader = _Reader(data, most_values)
        try:
            value = self._read(self._schema, reader, 0)
        except (struct.error, UnicodeDecodeError, LookupError, TypeError, RecursionError) as error:
            raise NotAvro(f"the message does not match its schema: {error!r}") from None
        if reader.left:
            raise NotAvro(f"the message has {reader.left} extra bytes after its value")
        return value

    def _learn(self, node: Any, space: str) -> None:
        """Collect the schema's named types, by full and short name."""
        if isinstance(node, list):
            for branch in node:
                self._learn(branch, space)
        elif isinstance(node, dict):
            if "name" in node:
                space = node.get("namespace", space) or ""
                full = _name_within(space, node["name"])
                self._names[node["name"]] = self._names[full] = node
            inside = [each["type"] for each in node.get("fields", ())]
            for each in node.get("fields", ()):
                _name_within("", each["name"])
            for each in (*inside, *(node[part] for part in ("items", "values") if part in node)):
                self._learn(each, space)
            if not isinstance(node["type"], str):
                self._learn(node["type"], space)

    def _resolved(self, node: Any) -> tuple[str, Any]:
        """The name of a node's type, and the node that defines it."""
        if isinstance(node, list):
            return "union", node
        if isinstance(node, dict):
            kind = node["type"]
            return (kind, node) if isinstance(kind, str) else self._resolved(kind)
        return self._resolved(self._names[node]) if node in self._names else (node, node)

    # -- writing

    def count(self, steps: int) -> None:
        before, self.steps_left = self.steps_left, self.steps_left - steps
        if before // _STEPS_A_BREATH != self.steps_left // _STEPS_A_BREATH:
            time.sleep(0)  # this may run in a thread: let other threads have the interpreter
        if self.steps_left < 0:
            raise TooMuchWork("the value is too expensive to match with its schema")

    def _write(self, node: Any, value: Any, out: bytearray) -> None:
        self.count(1 + len(value) if isinstance(value, str | list | dict) else 1)
        kind, node = self._resolved(node)
        write = _WRITERS.get(kind)
        if write is None:
            raise NotAvro(f"{shortly(kind)} is not an Avro type")
        write(self, node, value, out)

    def _write_record(self, node: Any, value: Any, out: bytearray) -> None:
        _check(isinstance(value, Mapping), value, f"record {node['name']}")
        self.count(len(node["fields"]))
        known = {field["name"] for field in node["fields"]}
        if odd := sorted(set(value) - known):
            raise NotAvro(f"record {node['name']} has no field {odd[0][:_SHOWN_CHARS]}")
        for field in node["fields"]:
            if field["name"] not in value and "default" not in field:
                raise NotAvro(f"record {node['name']} needs the field {field['name']}")
            self._write(field["type"], value.get(field["name"], field.get("default")), out)

    def _write_union(self, node: Any, value: Any, out: bytearray) -> None:
        if isinstance(value, dict) and len(value) == 1:
            ((tag, inside),) = value.items()
            if tag != "null" and self._write_branch(node, inside, out, tag):
                return
        if not self._write_branch(node, value, out):
            kinds = ", ".join(map(self._name_of, node[:_SHOWN_BRANCHES]))
            raise NotAvro(f"{shortly(value)} is not one of {kinds}")

    def _write_branch(self, node: Any, value: Any, out: bytearray, name: str | None = None) -> bool:
        """Write the value with the first branch that accepts it, or that has the given name and
        accepts it. False if there is none.
        """
        self.count(len(node))
        for index, branch in enumerate(node):
            if name is not None and name not in (self._name_of(branch), self._short_of(branch)):
                continue
            tried = bytearray()
            try:
                self._write(branch, value, tried)
            except TooMuchWork:
                raise
            except NotAvro:
                continue
            out += _varint(index) + tried
            return True
        return False

    def _short_of(self, branch: Any) -> str:
        return self._name_of(branch).rpartition(".")[2]

    def _name_of(self, branch: Any) -> str:
        """The name of a branch in the JSON encoding of a union's value."""
        kind, node = self._resolved(branch)
        if kind in _PRIMITIVE or not isinstance(node, dict) or "name" not in node:
            return str(kind)[:_SHOWN_CHARS]
        space = node.get("namespace")
        return f"{space}.{node['name']}" if space else str(node["name"])

    def _write_array(self, node: Any, value: Any, out: bytearray) -> None:
        _check(isinstance(value, list), value, "array")
        if value:
            out += _varint(len(value))
            for item in value:
                self._write(node["items"], item, out)
        out += b"\0"

    def _write_map(self, node: Any, value: Any, out: bytearray) -> None:
        _check(isinstance(value, Mapping), value, "map")
        if value:
            out += _varint(len(value))
            for key, item in value.items():
                self.count(len(key))
                _write_text(self, node, key, out)
                self._write(node["values"], item, out)
        out += b"\0"

    # -- reading

    def _read(self, node: Any, data: "_Reader", depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise NotAvro(f"the message is nested more than {_MAX_DEPTH} deep")
        data.count_value()
        kind, node = self._resolved(node)
        if kind == "record":
            return {f["name"]: self._read(f["type"], data, depth + 1) for f in node["fields"]}
        if kind == "union":
            return self._read(node[_within(data.varint(), len(node))], data, depth + 1)
        if kind == "enum":
            return node["symbols"][_within(data.varint(), len(node["symbols"]))]
        if kind == "fixed":
            return data.take(node["size"]).decode("latin-1")
        if kind == "array":
            return [self._read(node["items"], data, depth + 1) for _ in data.items()]
        if kind == "map":
            return {data.text(): self._read(node["values"], data, depth + 1) for _ in data.items()}
        return _READERS[kind](data)


def _name_within(space: Any, name: Any) -> str:
    if not isinstance(space, str) or not isinstance(name, str):
        raise TypeError("names must be strings")
    if len(space) + len(name) > _MAX_NAME_CHARS:
        raise ValueError(f"a name has more than {_MAX_NAME_CHARS} characters")
    return f"{space}.{name}"


class _Reader:
    def __init__(self, data: bytes, most_values: int) -> None:
        self._data = data
        self._at = 0
        self._values_left = min(most_values, _MAX_EMPTY_VALUES + len(data))

    def count_value(self) -> None:
        """Limits the number of values, even of those without bytes, such as null."""
        self._values_left -= 1
        if self._values_left < 0:
            raise NotAvro(
                "the message declares more values than its bytes can hold, or than are allowed"
            )

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise NotAvro("the message ends before its schema does")
        self._at += count
        return self._data[self._at - count : self._at]

    def varint(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            if shift > 63:
                raise NotAvro("the message has a number of more than 64 bits")

    def items(self) -> Any:
        """One iteration for each item that the blocks of an array or map declare."""
        while count := self.varint():
            if count < 0:
                count = -count
                self.varint()  # the block's size
            yield from range(count)

    def text(self) -> str:
        return self.take(self.varint()).decode()


def _within(index: int, count: int) -> int:
    if not 0 <= index < count:
        raise NotAvro(f"the message chooses branch or symbol {index} of {count}")
    return index


_READERS: Final[dict[str, Callable[[_Reader], Any]]] = {
    "null": lambda data: None,
    "boolean": lambda data: data.take(1) != b"\0",
    "int": _Reader.varint,
    "long": _Reader.varint,
    "float": lambda data: _FLOAT.unpack(data.take(4))[0],
    "double": lambda data: _DOUBLE.unpack(data.take(8))[0],
    "bytes": lambda data: data.take(data.varint()).decode("latin-1"),
    "string": _Reader.text,
}


def _varint(number: int) -> bytes:
    """Zigzag encoding."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _check(fits: bool, value: Any, kind: str) -> None:
    if not fits:
        raise NotAvro(f"{shortly(value)} is not of type {kind}")


def _write_null(_: Codec, node: Any, value: Any, out: bytearray) -> None:
    _check(value is None, value, "null")


def _write_boolean(_: Codec, node: Any, value: Any, out: bytearray) -> None:
    _check(isinstance(value, bool), value, "boolean")
    out.append(value)


def _write_integer(_: Codec, node: Any, value: Any, out: bytearray) -> None:
    kind = node if isinstance(node, str) else node["type"]
    whole = isinstance(value, int) and not isinstance(value, bool)
    _check(whole and -(limit := 1 << _INTEGERS[kind]) <= value < limit, value, kind)
    out += _varint(value)


def _write_real(_: Codec, node: Any, value: Any, out: bytearray) -> None:
    kind = node if isinstance(node, str) else node["type"]
    _check(isinstance(value, int | float) and not isinstance(value, bool), value, kind)
    try:
        out += (_FLOAT if kind == "float" else _DOUBLE).pack(value)
    except OverflowError:
        raise NotAvro(f"{shortly(value)} is not of type {kind}") from None


def _write_text(_: Codec, node: Any, value: Any, out: bytearray) -> None:
    _check(isinstance(value, str), value, "string")
    data = value.encode()
    out += _varint(len(data)) + data


def _latin(value: Any) -> bytes:
    _check(isinstance(value, str) and all(ord(each) < 256 for each in value), value, "bytes")
    return str(value).encode("latin-1")


def _write_bytes(_: Codec, node: Any, value: Any, out: bytearray) -> None:
    data = _latin(value)
    out += _varint(len(data)) + data


def _write_fixed(_: Codec, node: Any, value: Any, out: bytearray) -> None:
    data = _latin(value)
    _check(len(data) == node["size"], value, f"fixed of {node['size']} bytes")
    out += data


def _write_enum(codec: Codec, node: Any, value: Any, out: bytearray) -> None:
    codec.count(len(node["symbols"]) // 16)
    _check(value in node["symbols"], value, f"symbol of {node['name']}")
    out += _varint(node["symbols"].index(value))


_WRITERS: Final[dict[str, Callable[[Codec, Any, Any, bytearray], None]]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _write_integer,
    "long": _write_integer,
    "float": _write_real,
    "double": _write_real,
    "bytes": _write_bytes,
    "string": _write_text,
    "fixed": _write_fixed,
    "enum": _write_enum,
    "record": Codec._write_record,
    "union": Codec._write_union,
    "array": Codec._write_array,
    "map": Codec._write_map,
}
