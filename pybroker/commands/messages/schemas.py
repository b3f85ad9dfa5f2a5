"""Schemas on the command line: -vs, -ks and -kvet encode values, auto_consume decodes them.

Values of an Avro schema are entered as JSON and sent as Avro; those of a JSON schema are sent as
entered.
"""

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pybroker.client import Client, SchemaType, TopicSchema
from pybroker.values.avro import Codec, NotAvro
from pybroker.wire import pulsar_api_pb2 as pb

_U32: Final = struct.Struct(">i")
_VERSION_BYTES: Final = 8
_MOST_KNOWN: Final = 1000
_RECORDS: Final = {"avro": SchemaType.AVRO, "json": SchemaType.JSON}


def _unchanged(data: bytes) -> bytes:
    return data


@dataclass(frozen=True, slots=True)
class Component:
    """The schema of a value or of its key. `encode` encodes the entered text."""

    kind: str
    name: str
    schema: TopicSchema | None
    encode: Callable[[bytes], bytes] = _unchanged


def component(text: str) -> Component:
    """Parses bytes, string, avro:DEFINITION or json:DEFINITION. Raises ValueError."""
    if text == "bytes":
        return Component("BYTES", "Bytes", None)
    if text == "string":
        return Component("STRING", "String", TopicSchema(SchemaType.STRING, name="String"))
    kind, colon, definition = text.partition(":")
    if not colon or kind not in _RECORDS:
        raise ValueError(
            f"schema {text[:80]!r} is not bytes, string, avro:DEFINITION or json:DEFINITION"
        )
    codec = Codec(definition)
    schema = TopicSchema(_RECORDS[kind], definition, "client")

    def checked(typed: bytes) -> bytes:
        try:
            value = json.loads(typed)
        except ValueError as error:
            raise ValueError(f"{typed[:80]!r} must be JSON for the schema: {error}") from None
        encoded = codec.encode(value)
        return encoded if kind == "avro" else typed

    return Component(kind.upper(), "client", schema, checked)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """The schemas of a key and its value. The key comes before the value (inline), or is the key of
    the message (separated).
    """

    key: Component
    value: Component
    separated: bool

    @property
    def schema(self) -> TopicSchema:
        parts = {"key": self.key, "value": self.value}
        properties = {"kv.encoding.type": "SEPARATED" if self.separated else "INLINE"}
        definition = b""
        for part, what in parts.items():
            properties[f"{part}.schema.name"] = what.name
            properties[f"{part}.schema.type"] = what.kind
            properties[f"{part}.schema.properties"] = "{}"
            text = "" if what.schema is None else what.schema.definition
            definition += _sized(text.encode() if isinstance(text, str) else text)
        return TopicSchema(SchemaType.KEY_VALUE, definition, "KeyValue", properties)

    def message(self, key: bytes, value: bytes) -> tuple[bytes, dict[str, Any]]:
        """The content, and further arguments of `send`. Raises ValueError."""
        key, value = self.key.encode(key), self.value.encode(value)
        if not self.separated:
            return _sized(key) + _sized(value), {}
        text = base64.b64encode(key).decode()
        return value, {"partition_key": text, "partition_key_b64_encoded": True}


def _sized(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


# -- decoding

_STRUCTS: Final[dict[int, str]] = {
    pb.Schema.Int8: ">b",
    pb.Schema.Int16: ">h",
    pb.Schema.Int32: ">i",
    pb.Schema.Int64: ">q",
    pb.Schema.Float: ">f",
    pb.Schema.Double: ">d",
    pb.Schema.Bool: ">?",
}
_BY_NAME: Final = {name.upper(): number for name, number in pb.Schema.Type.items()}


class Decoder:
    """Decodes values by their topic's schema, in the version that each message gives."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, bytes], pb.Schema | None] = {}
        self._codecs: dict[bytes, Codec] = {}

    def text(self, topic: str, version: bytes, data: bytes, key: str) -> str | None:
        """The value as text; None if there is no schema, or the value does not match it."""
        schema = self._schema(topic, version)
        if schema is None:
            return None
        try:
            value = self._value(schema, data, key)
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            text.encode()  # raises for a half of a surrogate pair, which is valid in JSON
        except (ValueError, struct.error, KeyError, RecursionError):
            return None
        return text

    def _schema(self, topic: str, version: bytes) -> pb.Schema | None:
        """The schema; None if it does not exist: the producer may have sent any `version`."""
        if len(version) not in (0, _VERSION_BYTES):
            return None
        if (topic, version) not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[topic, version] = self._client.get_schema(topic, version or None)
        return self._known[topic, version]

    def _value(self, schema: pb.Schema, data: bytes, key: str) -> Any:
        """The decoded value. Raises ValueError, struct.error, KeyError."""
        if schema.type == pb.Schema.KeyValue:
            return self._key_value(schema, data, key)
        return self._plain(schema.type, schema.schema_data, data)

    def _plain(self, kind: int, definition: bytes, data: bytes) -> Any:
        if kind == pb.Schema.Avro:
            codec = self._codecs.get(definition)
            if codec is None:
                codec = self._codecs[definition] = Codec(definition)
            return codec.decode(data)
        if kind == pb.Schema.Json:
            return json.loads(data)
        if kind in _STRUCTS:
            return struct.unpack(_STRUCTS[kind], data)[0]
        return data.decode()

    def _key_value(self, schema: pb.Schema, data: bytes, key: str) -> Any:
        properties = _pairs(schema.properties)
        definitions = _parts(schema.schema_data)
        if properties.get("kv.encoding.type") == "SEPARATED":
            parts = [base64.b64decode(key), data]
        else:
            parts = _parts(data)
        return {
            what: self._plain(_kind_of(properties, what), definition, part)
            for what, definition, part in zip(("key", "value"), definitions, parts, strict=True)
        }


def _pairs(properties: Sequence[Any]) -> dict[str, str]:
    return {pair.key: pair.value for pair in properties}


def _kind_of(properties: Mapping[str, str], what: str) -> int:
    return _BY_NAME.get(properties[f"{what}.schema.type"], 0)


def _parts(data: bytes) -> list[bytes]:
    """The two parts, each after its size. Raises ValueError, struct.error."""
    (size,) = _U32.unpack_from(data)
    if not 0 <= size <= len(data) - 8:
        raise NotAvro("a key is shorter than its declared length")
    return [data[4 : 4 + size], data[8 + size :]]
