"""A decoder of Avro's binary encoding, written from its specification."""

import datetime as dt
import io
import struct
from decimal import Decimal

UTC = dt.UTC

LOGICAL = {
    "date": lambda value, _: dt.date(1970, 1, 1) + dt.timedelta(value),
    "timestamp-micros": lambda value, _: (
        dt.datetime(1970, 1, 1, tzinfo=UTC) + dt.timedelta(microseconds=value)
    ),
    "local-timestamp-micros": lambda value, _: (
        dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)
    ),
    "decimal": lambda value, schema: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(
        -schema["scale"]
    ),
}


class Decoder:
    def __init__(self, data):
        self.data = io.BytesIO(data)

    def long(self):
        shift = value = 0
        while True:
            (byte,) = self.data.read(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def read(self, schema):
        if isinstance(schema, list):
            return self.read(schema[self.long()])
        kind = schema if isinstance(schema, str) else schema["type"]
        logical = None if isinstance(schema, str) else schema.get("logicalType")
        value = self.plain(kind, schema)
        return LOGICAL[logical](value, schema) if logical else value

    def plain(self, kind, schema):
        match kind:
            case "null":
                return None
            case "boolean":
                return self.data.read(1) == b"\x01"
            case "int" | "long":
                return self.long()
            case "float":
                return struct.unpack("<f", self.data.read(4))[0]
            case "double":
                return struct.unpack("<d", self.data.read(8))[0]
            case "bytes":
                return self.data.read(self.long())
            case "string":
                return self.data.read(self.long()).decode()
            case "record":
                return {field["name"]: self.read(field["type"]) for field in schema["fields"]}
            case "array":
                return [self.read(schema["items"]) for _ in self.blocks()]
            case "map":
                return {
                    self.plain("string", None): self.read(schema["values"]) for _ in self.blocks()
                }

    def blocks(self):
        while count := self.long():
            yield from range(count)
