"""Whether a schema may follow another on a topic, under each of Apache Pulsar's strategies.

BACKWARD: the new schema reads data of the old one. FORWARD: the reverse. FULL, the default: both.
The transitive ones check all versions, the others the latest. Except under ALWAYS_COMPATIBLE, types
never mix.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from pybroker.broker.schemas.avro import MAX_SCHEMA_BYTES, NotAvro, loaded, parse, why_unreadable

# Values of Schema.Type. Plain bytes have no number of their own there: they are NONE.
NONE: Final = 0
JSON, PROTOBUF, AVRO = 2, 3, 4
KEY_VALUE: Final = 15
PROTOBUF_NATIVE: Final = 20
AUTO_CONSUME: Final = 21
# The admin API's names for the wire's numbers, from 0 on; no topic has 21, AUTO_CONSUME.
TYPE_NAMES: Final = (
    "NONE",
    "STRING",
    "JSON",
    "PROTOBUF",
    "AVRO",
    "BOOLEAN",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FLOAT",
    "DOUBLE",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "KEY_VALUE",
    "INSTANT",
    "LOCAL_DATE",
    "LOCAL_TIME",
    "LOCAL_DATE_TIME",
    "PROTOBUF_NATIVE",
    "AUTO_CONSUME",
    "EXTERNAL",
)
# BYTES are plain bytes, for which the protocol has no number.
TYPE_NUMBERS: Final = {name: number for number, name in enumerate(TYPE_NAMES)} | {"BYTES": NONE}
MAX_PROPERTIES: Final = 1000  # of a schema
_AVRO_BASED: Final = (JSON, PROTOBUF, AVRO)
_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """`type` is the wire's number; the type defines the content of `data` (an Avro record as JSON,
    …).
    """

    name: str
    type: int
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """Equal for equivalent schemas."""
        return _digest(self.type, self.data)

    @property
    def size_bytes(self) -> int:
        """The size of everything stored for the schema."""
        said = (self.name, *self.properties, *self.properties.values())
        return len(self.data) + sum(len(text.encode()) for text in said)

    def same_as(self, other: "StoredSchema") -> bool:
        return self.digest == other.digest


class Strategy(Enum):
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        return self.value.endswith("TRANSITIVE")

    @property
    def of_consumers(self) -> "Strategy":
        """The requirement for a consumer's schema. Source: SchemaRegistryServiceImpl."""
        return _OF_CONSUMERS.get(self, self)


_OF_CONSUMERS: Final = {
    Strategy.BACKWARD: Strategy.BACKWARD,
    Strategy.FORWARD: Strategy.BACKWARD,
    Strategy.FULL: Strategy.BACKWARD,
    Strategy.FORWARD_TRANSITIVE: Strategy.BACKWARD,
}
_NEW_READS_OLD: Final = frozenset(s for s in Strategy if s.value.startswith(("BACKWARD", "FULL")))
_OLD_READS_NEW: Final = frozenset(s for s in Strategy if s.value.startswith(("FORWARD", "FULL")))


@lru_cache(maxsize=16)
def _digest(kind: int, data: bytes) -> bytes:
    said = _canonical(data) if kind in _AVRO_BASED else data
    return hashlib.sha256(b"%d %b" % (kind, said)).digest()[:16]


def why_not_after(strategy: Strategy, new: StoredSchema, old: StoredSchema) -> str | None:
    """Why `new` may not follow `old`; None if it may."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return None
    if new.type != old.type:
        return (
            f"Incompatible schema: exists schema type {type_name(old.type)}, "
            f"new schema type {type_name(new.type)}"
        )
    if new.same_as(old):
        return None
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return "Schema compatibility strategy is ALWAYS_INCOMPATIBLE"
    why = why_not_readable(new, old) if strategy in _NEW_READS_OLD else None
    if why is None and strategy in _OLD_READS_NEW:
        why = why_not_readable(old, new)
    return why


def why_invalid(schema: StoredSchema) -> str | None:
    """Why this is not a schema of its type; None if it is."""
    if schema.size_bytes > MAX_SCHEMA_BYTES:
        return (
            f"it has {schema.size_bytes} bytes, including its name and properties; "
            f"at most {MAX_SCHEMA_BYTES} are allowed"
        )
    if len(schema.properties) > MAX_PROPERTIES:
        return f"it has {len(schema.properties)} properties; at most {MAX_PROPERTIES} are allowed"
    if schema.type in _AVRO_BASED and not _json_schema_id(schema):
        try:
            parse(schema.data)
        except NotAvro as error:
            return str(error)
    if schema.type == KEY_VALUE:
        try:
            return next(filter(None, map(why_invalid, _parts(schema))), None)
        except BadKeyValue as error:
            return str(error)
    return None


def _canonical(data: bytes) -> bytes:
    try:
        return json.dumps(loaded(data), sort_keys=True, separators=(",", ":")).encode()
    except (NotAvro, RecursionError):
        return data


def why_not_readable(reader: StoredSchema, writer: StoredSchema) -> str | None:
    """Why `reader` cannot read data of `writer`; None if it can."""
    if reader.type != writer.type:
        return f"its type is {type_name(reader.type)}, the topic's is {type_name(writer.type)}"
    if reader.same_as(writer):
        return None
    if reader.type in _AVRO_BASED:
        return _avro_based(reader, writer)
    if reader.type == KEY_VALUE:
        return _key_value(reader, writer)
    if reader.type == PROTOBUF_NATIVE:
        same = _root_message(reader) == _root_message(writer)
        return None if same else "its root message differs"
    return None


def type_name(number: int) -> str:
    return TYPE_NAMES[number] if number < len(TYPE_NAMES) else str(number)


def _avro_based(reader: StoredSchema, writer: StoredSchema) -> str | None:
    ids = _json_schema_id(reader), _json_schema_id(writer)
    if any(ids):  # old Java clients describe JSON by JSON Schema, which is not examined
        return None if not all(ids) or ids[0] == ids[1] else "its id differs"
    try:
        return why_unreadable(parse(reader.data), parse(writer.data))
    except NotAvro as error:
        return str(error)


def _json_schema_id(schema: StoredSchema) -> str:
    if schema.type != JSON:
        return ""
    described = _object(schema.data)
    return str(described.get("id", "")) if described.get("type") == "object" else ""


def _root_message(schema: StoredSchema) -> Any:
    return _object(schema.data).get("rootMessageTypeName")


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = loaded(data)
    except NotAvro:
        return {}
    return value if isinstance(value, dict) else {}


# -- KEY_VALUE: two schemas in one, each preceded by its size


class BadKeyValue(ValueError):
    """The data does not consist of exactly two schemas."""


def join_key_value(key: bytes, value: bytes) -> bytes:
    return b"".join((_SIZE.pack(len(key)), key, _SIZE.pack(len(value)), value))


def split_key_value(data: bytes) -> tuple[bytes, bytes]:
    """The key's and the value's schema data; a size of -1 means none. Raises BadKeyValue."""
    key, end = _sized(data, 0)
    value, end = _sized(data, end)
    if end != len(data):
        raise BadKeyValue("A key-value schema has extra bytes after its value")
    return key, value


def _sized(data: bytes, start: int) -> tuple[bytes, int]:
    try:
        size = max(_SIZE.unpack_from(data, start)[0], 0)
    except struct.error:
        raise BadKeyValue("A key-value schema ends before its value") from None
    end = start + _SIZE.size + size
    return data[start + _SIZE.size : end], end


def _key_value(reader: StoredSchema, writer: StoredSchema) -> str | None:
    try:
        readers, writers = _parts(reader), _parts(writer)
    except BadKeyValue as error:
        return str(error)
    for name, ours, theirs in zip(("key", "value"), readers, writers, strict=True):
        if (why := why_not_readable(ours, theirs)) is not None:
            return f"{name}: {why}"
    return None


def _parts(schema: StoredSchema) -> list[StoredSchema]:
    data = split_key_value(schema.data)
    kinds = (schema.properties.get(f"{part}.schema.type", "") for part in ("key", "value"))
    return [
        replace(schema, type=_part_type(kind), data=part)
        for kind, part in zip(kinds, data, strict=True)
    ]


def _part_type(name: str) -> int:
    """The type number; NONE (bytes) by default. A key-value schema cannot contain another one."""
    known = name in TYPE_NAMES and name != "KEY_VALUE"
    return TYPE_NAMES.index(name) if known else NONE
