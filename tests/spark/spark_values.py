"""Values of a schema, for tests: an Avro encoder, written from its specification."""

import json
import struct

import numpy as np

from pybroker.spark.columns.fields import PADDING, Slices
from pybroker.spark.columns.slab import Pairs, Slab
from pybroker.spark.schemas.values import TopicSchema, values
from pybroker.wire import pulsar_api_pb2 as pb


def slab_of(contents, keys=None, versions=None, keys_are_base64=False):
    """A slab with nothing but these values; None for a null value."""
    blob = b""

    def put(content):
        nonlocal blob
        place = (len(blob), -1 if content is None else len(content))
        blob += content or b""
        return place

    def slices(parts):
        places = [put(each) for each in parts]
        columns = np.array(places, np.int64).reshape(len(places), 2)
        return Slices(columns[:, 0].copy(), columns[:, 1].copy())

    count = len(contents)
    value = slices(contents)
    key = slices(keys or [None] * count)
    version = slices(versions or [None] * count)
    zero = np.zeros(count, np.int64)
    is_base64 = np.full(count, keys_are_base64)
    none = Slices.none(0)
    data = np.frombuffer(blob + bytes(PADDING), np.uint8)
    pairs = Pairs(zero[:0], none, none)
    return Slab(
        data, zero, zero, zero, zero, value, key, is_base64, zero, zero, pairs, version, zero
    )


def columns(schema, contents, versions=lambda version: None, **given):
    found = values(slab_of(contents, **given), schema, versions)
    return {name: array.to_pylist() for name, array in found.items()}


def zigzag(number):
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encoded(node, value):
    kind = node["type"]
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in ("int", "long"):
        return zigzag(value)
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind in ("bytes", "string"):
        data = value.encode() if isinstance(value, str) else value
        return zigzag(len(data)) + data
    if kind == "fixed":
        return value
    if kind == "enum":
        return zigzag(node["symbols"].index(value))
    if kind == "union":
        names = [each["type"] for each in node["branches"]]
        branch = (
            names.index("null")
            if value is None
            else next(index for index, name in enumerate(names) if name != "null")
        )
        return zigzag(branch) + encoded(node["branches"][branch], value)
    if kind == "array":
        items = b"".join(encoded(node["items"], each) for each in value)
        return (zigzag(len(value)) + items if value else b"") + zigzag(0)
    if kind == "map":
        items = b"".join(
            encoded({"type": "string"}, key) + encoded(node["values"], each)
            for key, each in value.items()
        )
        # With the block's size, which writers may include.
        return (zigzag(-len(value)) + zigzag(len(items)) + items if value else b"") + zigzag(0)
    return b"".join(encoded(each["node"], value[each["name"]]) for each in node["fields"])


def avro(fields, **more):
    definition = {"type": "record", "name": "R", "fields": fields, **more}
    return TopicSchema(pb.Schema.Avro, json.dumps(definition).encode())


def key_value(key, value, **properties):
    data = b"".join(struct.pack(">i", len(each.data)) + each.data for each in (key, value))
    names = {number: name.upper() for name, number in pb.Schema.Type.items()}
    kinds = {"key.schema.type": names[key.kind], "value.schema.type": names[value.kind]}
    return TopicSchema(pb.Schema.KeyValue, data, kinds | properties)
