"""Shows a message's value in readable form: by its schema, as text, or as hexadecimal bytes."""

import json
import struct
from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Any, Final

from pybroker.base.json_text import json_of
from pybroker.console.pages.topics.entries import Message
from pybroker.console.pages.topics.searching import NOTHING
from pybroker.values import protobuf
from pybroker.values.avro import Codec

_MOST_BYTES: Final = 4096  # of the value, as shown
_MOST_VALUES: Final = (
    2000  # in an Avro value, which is decoded completely; larger values are shown as bytes
)
MOST_DECODED: Final = 64 * 1024
_ROW: Final = 16
_INDENTED: Final = json.JSONEncoder(indent=1, ensure_ascii=False)
_STRUCTS: Final = {
    "INT8": ">b",
    "INT16": ">h",
    "INT32": ">i",
    "INT64": ">q",
    "FLOAT": ">f",
    "DOUBLE": ">d",
    "BOOLEAN": ">?",
}


class Decoder:
    """Decodes values. `versions` are the topic's schemas, as the admin API returns them."""

    def __init__(self, versions: Iterable[dict[str, Any]]) -> None:
        self._versions = {each["version"]: each for each in versions}
        self._codecs: dict[int, Codec] = {}
        self._protobufs: dict[int, protobuf.Decode] = {}

    def shown(self, message: Message, how: str) -> tuple[str, str]:
        """The text, and a description of how it was decoded. `how` is text, hex, or empty for the
        best choice.
        """
        if message.data is None:
            return "", "no value"
        data, size = message.data, message.size_bytes
        if how == "hex":
            return hex_dump(data), _cut("bytes", size)
        if how != "text" and not message.encrypted and size <= MOST_DECODED:
            decoded = self._decoded(message.schema_version, data)
            if decoded is not None:
                return decoded
        if how == "text":
            return data[:_MOST_BYTES].decode(errors="replace"), _cut("text", size)
        try:
            text = getincrementaldecoder("utf-8")().decode(data, final=len(data) == size)
        except UnicodeDecodeError:
            return hex_dump(data), _cut("bytes", size)
        return text[:_MOST_BYTES], _cut("text", size)

    def _decoded(self, number: int | None, data: bytes) -> tuple[str, str] | None:
        schema = self._versions.get(-1 if number is None else number)
        if schema is None:
            return None
        kind = schema["type"]
        try:
            value = self._value(schema, kind, data)
            text = value if isinstance(value, str) else _beginning(value)
        except (ValueError, struct.error, KeyError, RecursionError):
            return None
        text = text.encode(errors="replace").decode()
        return text[:_MOST_BYTES], f"{kind}, schema version {number}"

    def value(self, message: Message) -> Any:
        """The decoded value; without a schema, that of JSON. NOTHING if it cannot be decoded."""
        data = message.data
        if data is None or message.encrypted or message.size_bytes > MOST_DECODED:
            return NOTHING
        number = message.schema_version
        schema = self._versions.get(-1 if number is None else number)
        try:
            if schema is None:
                return json_of(data)
            return self._value(schema, schema["type"], data)
        except (ValueError, struct.error, KeyError, RecursionError):
            return NOTHING

    def _value(self, schema: dict[str, Any], kind: str, data: bytes) -> Any:
        if kind == "AVRO":
            number = schema["version"]
            if number not in self._codecs:
                self._codecs[number] = Codec(schema["data"])
            return self._codecs[number].decode(data, _MOST_VALUES)
        if kind == "JSON":
            return json.loads(data)
        if kind == "PROTOBUF_NATIVE":
            number = schema["version"]
            if number not in self._protobufs:
                self._protobufs[number] = protobuf.Decode(schema["data"])
            return self._protobufs[number](data)
        if kind in _STRUCTS:
            return struct.unpack(_STRUCTS[kind], data)[0]
        if kind == "STRING":
            return data.decode()
        raise KeyError(kind)


def _beginning(value: Any) -> str:
    """At least the part of the JSON that is shown. The rest is not encoded: with indentation, a
    deeply nested value takes many times its bytes.
    """
    pieces, size = list[str](), 0
    for piece in _INDENTED.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size >= _MOST_BYTES:
            break
    return "".join(pieces)


def _cut(kind: str, size: int) -> str:
    if size <= _MOST_BYTES:
        return f"{kind}, {size:,} {'byte' if size == 1 else 'bytes'}"
    return f"{kind}, the first {_MOST_BYTES:,} of {size:,} bytes"


def hex_dump(data: bytes) -> str:
    """Sixteen bytes per line: offset, bytes, printable characters."""
    starts = range(0, min(len(data), _MOST_BYTES), _ROW)
    return "\n".join(_row(data[start : start + _ROW], start) for start in starts)


def _row(part: bytes, start: int) -> str:
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"{start:04x}  {part.hex(' '):{3 * _ROW}} {text}"
