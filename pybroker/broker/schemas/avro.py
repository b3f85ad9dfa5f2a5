"""Whether data written under one Avro schema can be read under another: Avro's schema resolution.

Schemas are the JSON that Avro defines. Named types are looked up by their name without the
namespace. A record may be renamed, as in Avro's Java library, which Apache Pulsar uses: only its
fields are compared. Enums and fixed types may not. Parsing and comparing steps are counted, so that
a schema made to be expensive is refused.
Source: Apache Avro specification, "Schema Resolution".
"""

import json
from functools import lru_cache
from itertools import islice
from typing import Any, Final

MAX_STEPS: Final = 8000
MAX_SCHEMA_BYTES: Final = 256 * 1024
MAX_PARTS: Final = 30_000  # parsed within milliseconds; a field of a record has five or six
_SYMBOLS_A_STEP: Final = 64  # symbols of an enum
_PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_NAMED: Final = ("record", "error", "enum", "fixed")
_RECORDS: Final = ("record", "error")
_COMPLEX: Final = (*_NAMED, "array", "map")
# What a reader's type accepts besides itself.
_PROMOTED: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}


class NotAvro(ValueError):
    """The text is not an Avro schema, or exceeds the limits."""


@lru_cache(maxsize=4)
def loaded(data: bytes) -> Any:
    """Parsed JSON, not to be modified. Raises NotAvro."""
    if len(data) > MAX_SCHEMA_BYTES:
        raise NotAvro(f"it has {len(data)} bytes; at most {MAX_SCHEMA_BYTES} are compared")
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_PARTS:
        raise NotAvro(f"it has more than {MAX_PARTS} parts")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotAvro(f"it is not an Avro schema: {error}") from None


@lru_cache(maxsize=4)  # the old and the new schema, each of a key and a value
def parse(data: bytes) -> "AvroSchema":
    """Raises NotAvro if the data is not an Avro schema, or nests too deeply."""
    try:
        return AvroSchema(loaded(data))
    except RecursionError as error:
        raise NotAvro(f"it is not an Avro schema: {error}") from None


class AvroSchema:
    """`root` is a type: a name, a list (union) or an object. Raises NotAvro."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._named: dict[str, dict[str, Any]] = {}
        self._wrapped: dict[int, Any] = {}  # by the id of a node that only wraps a type: that type
        self._short_names: dict[int, frozenset[str]] = {}  # by the id of a named type
        self._collect(root)

    def resolved(self, node: Any) -> Any:
        """A primitive's name, a union's list, or a type's object."""
        node = self._wrapped.get(id(node), node)
        if isinstance(node, str) and node not in _PRIMITIVES:
            return self._named[_short(node)]
        return node

    def is_called(self, node: dict[str, Any], name: str) -> bool:
        return _short(name) in self._short_names[id(node)]

    def _collect(self, node: Any) -> None:
        if isinstance(node, list):
            for branch in node:
                self._collect(branch)
        elif isinstance(node, dict):
            self._collect_type(node)
        elif not isinstance(node, str) or not (node in _PRIMITIVES or _short(node) in self._named):
            raise NotAvro(f"{str(node)[:100]!r} is not the name of a type")

    def _collect_type(self, node: dict[str, Any]) -> None:
        kind = node.get("type")
        if kind in _NAMED:
            _check_names(node)
            self._named[_short(node["name"])] = node
            self._short_names[id(node)] = frozenset(map(_short, _names(node)))
        if kind in _RECORDS:
            for field in _fields(node):
                _check_names(field)
                self._collect(field.get("type"))
        elif kind == "enum":
            symbols = node.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
                raise NotAvro(f"the enum {node['name']} has no list of symbols")
        elif kind in ("array", "map"):
            self._collect(node.get("items" if kind == "array" else "values"))
        elif kind != "fixed":
            self._collect(kind)
            self._wrapped[id(node)] = self._wrapped.get(id(kind), kind)


def _fields(record: dict[str, Any]) -> list[dict[str, Any]]:
    fields = record.get("fields")
    if not isinstance(fields, list):
        raise NotAvro(f"the record {record['name']} has no list of fields")
    return fields


def _check_names(node: Any) -> None:
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        raise NotAvro(f"{str(node)[:100]!r} has no name")
    aliases = node.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise NotAvro(f"the aliases of {node['name']} are not a list of names")


def _names(node: dict[str, Any]) -> list[str]:
    return [node["name"], *(node.get("aliases") or ())]


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def why_unreadable(reader: AvroSchema, writer: AvroSchema) -> str | None:
    """Why data of `writer` cannot be read as `reader`; None if it can."""
    try:
        return _Comparison(reader, writer).why_not(reader.root, writer.root, "")
    except (_TooComplicated, RecursionError):
        return "the schemas are too complex to compare"


class _TooComplicated(Exception):
    pass


class _Comparison:
    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader = reader
        self._writer = writer
        self._steps = 0
        # By pairs of records; while a pair is being compared, it is assumed to be readable.
        self._records: dict[tuple[str, str], str | None] = {}
        self._enums: dict[tuple[int, int], str | None] = {}

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _TooComplicated

    def why_not(self, reader_node: Any, writer_node: Any, at: str) -> str | None:
        self._count(1)
        reader, writer = self._reader.resolved(reader_node), self._writer.resolved(writer_node)
        if isinstance(writer, list):
            return next(filter(None, (self.why_not(reader, branch, at) for branch in writer)), None)
        if isinstance(reader, list):
            return self._no_branch(reader, writer, at)
        kind, other = _kind(reader), _kind(writer)
        if kind != other:
            readable = other in _PROMOTED.get(kind, ())
            return None if readable else f"{at or 'the type'} changed from {other} to {kind}"
        return self._why_not_within(kind, reader, writer, at)

    def _no_branch(self, reader: list[Any], writer: Any, at: str) -> str | None:
        """The branch with the writer's name must read it, if there is one; otherwise any branch
        may.
        """
        for branch in reader:
            if self._has_name_of(branch, writer):
                return self.why_not(branch, writer, at)
        if any(self.why_not(branch, writer, at) is None for branch in reader):
            return None
        return f"{at or 'the union'} has no branch for {_kind(writer)}"

    def _has_name_of(self, reader_node: Any, writer: Any) -> bool:
        reader = self._reader.resolved(reader_node)
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            return False
        if _kind(reader) != _kind(writer) or _kind(writer) not in _NAMED:
            return False
        return _short(reader["name"]) == _short(writer["name"])

    def _why_not_within(self, kind: str, reader: Any, writer: Any, at: str) -> str | None:
        is_bound = kind in _NAMED and kind not in _RECORDS
        if is_bound and not self._reader.is_called(reader, writer["name"]):
            return f"{at or 'the type'} was {writer['name']}, is {reader['name']}"
        if kind in _RECORDS:
            return self._record(reader, writer)
        if kind == "enum":
            return self._enum(reader, writer)
        if kind == "fixed":
            same = reader.get("size") == writer.get("size")
            return None if same else f"{reader['name']} changed size"
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return self.why_not(reader[part], writer[part], f"{at}[]")
        return None

    def _record(self, reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
        pair = reader["name"], writer["name"]
        if pair not in self._records:
            known = len(self._records)
            self._records[pair] = None
            self._count(len(_fields(writer)) // 8)
            written = {field["name"]: field["type"] for field in _fields(writer)}
            record = _short(reader["name"])
            whys = (self._field(field, record, written) for field in _fields(reader))
            self._records[pair] = next(filter(None, whys), None)
            if self._records[pair] is not None:
                self._forget_what_rests_on_it(known + 1)
        return self._records[pair]

    def _forget_what_rests_on_it(self, known: int) -> None:
        """Drop results that relied on the assumption that an unreadable pair is readable."""
        for pair in list(islice(self._records, known, None)):
            if self._records[pair] is None:
                del self._records[pair]

    def _field(self, field: dict[str, Any], record: str, written: dict[str, Any]) -> str | None:
        path, names = f"{record}.{field['name']}", _names(field)
        other = next((written[name] for name in names if name in written), None)
        if other is not None:
            self._count(len(names) - 1)
            return self.why_not(field["type"], other, path)
        self._count(len(names))
        return None if "default" in field else f"{path} is new and has no default"

    def _enum(self, reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
        pair = id(reader), id(writer)
        if pair not in self._enums:
            symbols = len(reader["symbols"]) + len(writer["symbols"])
            self._count(symbols // _SYMBOLS_A_STEP)
            self._enums[pair] = _why_not_enum(reader, writer)
        return self._enums[pair]


def _why_not_enum(reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
    known = set(reader["symbols"])
    missing = next((symbol for symbol in writer["symbols"] if symbol not in known), None)
    readable = missing is None or "default" in reader
    return None if readable else f"the enum {reader['name']} lacks {missing}"


def _kind(node: Any) -> str:
    return str(node["type"]) if isinstance(node, dict) else str(node)
