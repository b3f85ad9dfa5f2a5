"""Which columns a topic's schema produces, and how they are filled.

Avro and JSON records become a column per field, primitives one column `value`, key-value schemas
the columns `key` and `value`. Other kinds (bytes, Protobuf) stay `value binary`. Messages written
with another version of the schema are decoded with that version.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.spark.columns.arrays import binaries, texts, vector
from pybroker.spark.columns.fields import PADDING, Data, NotParsed, Slices
from pybroker.spark.columns.keys import keys
from pybroker.spark.columns.slab import Slab
from pybroker.spark.schemas.adapting import adapted, arrow_type, read_as, spark_type
from pybroker.spark.schemas.avro import Node, Walk, parse
from pybroker.spark.schemas.json_values import read_json, require_readable
from pybroker.spark.schemas.primitives import PRIMITIVES, read_primitive
from pybroker.wire import pulsar_api_pb2 as pb

_Type = pb.Schema
_U32: Final = struct.Struct(">I")
_NOTHING: Final = 0xFFFF_FFFF
_NAMED: Final = 3  # topics in an error: a pattern may have thousands
_RECORDS: Final = (_Type.Avro, _Type.Json)
_BY_NAME: Final = {name.upper(): number for name, number in _Type.Type.items()}

# Returns a version's schema of the topic being read.
Versions = Callable[[bytes], "TopicSchema | None"]


class ValueNotRead(PulsarError):
    """A message's value does not match its topic's schema."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """Pickled to executors."""

    kind: int
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, schema: pb.Schema) -> Self:
        pairs: Sequence[Any] = schema.properties
        properties = {pair.key: pair.value for pair in pairs}
        return cls(schema.type, schema.schema_data, properties)

    @property
    def is_typed(self) -> bool:
        return (
            self.kind in PRIMITIVES
            or self.kind in _RECORDS
            or self.kind in (_Type.String, _Type.KeyValue)
        )

    def fields(self) -> list[StructField]:
        """The columns of this schema. Raises NotAllowed."""
        if self.kind == _Type.KeyValue:
            key, value = self.parts()
            return [StructField("key", key.type()), StructField("value", value.type())]
        kind = self.type()
        return list(kind.fields) if isinstance(kind, StructType) else [StructField("value", kind)]

    def type(self) -> DataType:
        """The type of the whole value."""
        if self.kind in PRIMITIVES:
            return PRIMITIVES[self.kind].type
        if self.kind in _RECORDS:
            return spark_type(self.node())
        return StringType() if self.kind == _Type.String else BinaryType()

    def node(self) -> Node:
        """Raises NotAllowed if the schema cannot be mapped to columns."""
        try:
            node = parse(json.loads(self.data))
            if self.kind == _Type.Json:
                require_readable(node)
            return node
        except (ValueError, KeyError, TypeError) as error:
            raise NotAllowed(
                f"The topic's schema cannot be mapped to columns ({error}): read raw values "
                "with the option rawValue=true"
            ) from error

    def parts(self) -> "tuple[TopicSchema, TopicSchema]":
        """The schemas of the key and of the value. Raises NotAllowed."""
        schemas, at = [], 0
        for name in ("key", "value"):
            (size,) = _U32.unpack_from(self.data.ljust(at + 4, b"\xff"), at)
            size = 0 if size == _NOTHING else size
            kind = _BY_NAME.get(self.properties.get(f"{name}.schema.type", "BYTES"), 0)
            schemas.append(TopicSchema(kind, self.data[at + 4 : at + 4 + size]))
            at += 4 + size
        return schemas[0], schemas[1]

    @property
    def key_is_apart(self) -> bool:
        return self.properties.get("kv.encoding.type") == "SEPARATED"


def values(slab: Slab, schema: TopicSchema, versions: Versions) -> dict[str, pa.Array]:
    """The columns of `schema.fields()` by name. Raises ValueNotRead."""
    wanted = StructType(schema.fields())
    by_version = _rows_by_version(slab)
    if len(by_version) == 1:
        [version] = by_version
        return _columns(slab, wanted, schema, _written_with(version, schema, versions))
    parts, order = [], []
    for version, rows in by_version.items():
        part = _some(slab, rows)
        parts.append(_columns(part, wanted, schema, _written_with(version, schema, versions)))
        order.append(rows)
    back = vector(np.argsort(np.concatenate(order), kind="stable"))
    return {
        each.name: pa.concat_arrays([part[each.name] for part in parts]).take(back)
        for each in wanted
    }


def _written_with(version: bytes, newest: TopicSchema, versions: Versions) -> TopicSchema:
    return (versions(version) if version else None) or newest


def _columns(
    slab: "_Part | Slab", wanted: StructType, newest: TopicSchema, schema: TopicSchema
) -> dict[str, pa.Array]:
    try:
        found = _read(slab, schema, newest)
    except NotParsed as error:
        raise _blamed(slab, schema, error) from error
    columns = {}
    for each in wanted:
        kind = arrow_type(each.dataType)
        array = found.get(each.name, pa.nulls(len(slab.value.start)))
        try:
            columns[each.name] = adapted(array, kind)
        except pa.ArrowException as error:
            raise ValueNotRead(
                f"Messages of an earlier schema have {each.name} as {array.type}, which cannot be "
                f"converted to {kind} ({error}): read raw values with rawValue=true"
            ) from error
    return columns


@dataclass(frozen=True, slots=True)
class _Part:
    """The bytes from which the values of some rows are decoded."""

    data: Data
    value: Slices
    key: Slices
    key_is_base64: npt.NDArray[np.bool_]


def _some(slab: "_Part | Slab", rows: Any) -> _Part:
    value, key = slab.value, slab.key
    return _Part(
        slab.data,
        Slices(value.start[rows], value.length[rows]),
        Slices(key.start[rows], key.length[rows]),
        slab.key_is_base64[rows],
    )


def _rows_by_version(slab: Slab) -> dict[bytes, Any]:
    versions = slab.schema_version
    if not versions.present.any():
        return {b"": np.arange(slab.rows)}
    names = binaries(slab.data, versions).fill_null(b"").dictionary_encode()
    indices = names.indices.to_numpy()
    return {
        name: np.flatnonzero(indices == number)
        for number, name in enumerate(names.dictionary.to_pylist())
    }


def _read(slab: "_Part | Slab", schema: TopicSchema, newest: TopicSchema) -> dict[str, pa.Array]:
    if schema.kind != _Type.KeyValue:
        whole = _array(slab.data, slab.value, schema, newest)
        if pa.types.is_struct(whole.type):
            return dict(zip([each.name for each in whole.type], whole.flatten(), strict=True))
        return {"value": whole}
    key_schema, value_schema = schema.parts()
    wanted_key, wanted_value = newest.parts() if newest.kind == schema.kind else schema.parts()
    data, key, value = slab.data, slab.key, slab.value
    if not schema.key_is_apart:
        key, value = _inline(slab)
    elif slab.key_is_base64.any():  # as official clients write it
        data, key = _placed(keys(slab.data, slab.key, slab.key_is_base64))
    return {
        "key": _array(data, key, key_schema, wanted_key),
        "value": _array(slab.data, value, value_schema, wanted_value),
    }


def _placed(found: pa.Array) -> tuple[Data, Slices]:
    """Puts separate byte strings into one buffer, like entries."""
    texts = found.to_pylist()
    length = np.array([-1 if each is None else len(each) for each in texts], np.int64)
    behind = np.cumsum(np.maximum(length, 0))
    buffer = b"".join([each or b"" for each in texts]) + bytes(PADDING)
    return np.frombuffer(buffer, np.uint8), Slices(behind - np.maximum(length, 0), length)


def _inline(slab: "_Part | Slab") -> tuple[Slices, Slices]:
    """Splits [size u32][key][size u32][value]; a size of -1 means null."""
    end = slab.value.start + np.maximum(slab.value.length, 0)
    at, found = slab.value.start, []
    absent = slab.value.length < 0
    for _ in ("key", "value"):
        if (at[~absent] + 4 > end[~absent]).any():
            raise NotParsed("a value ends before its parts")
        places = np.where(absent, 0, at)[:, None] + np.arange(4)
        size = slab.data[places].reshape(-1).view(">i4").astype(np.int64)
        size[absent] = -1
        start = at + 4
        at = start + np.maximum(size, 0)
        if (at[~absent] > end[~absent]).any():
            raise NotParsed("a part goes beyond the end of its value")
        found.append(Slices(start, size))
    return found[0], found[1]


def _array(data: Data, slices: Slices, schema: TopicSchema, newest: TopicSchema) -> pa.Array:
    if schema.kind in PRIMITIVES:
        return read_primitive(data, slices, PRIMITIVES[schema.kind])
    if schema.kind == _Type.String:
        return texts(data, slices)
    if schema.kind == _Type.Json:
        return read_json(data, slices, _node(schema, newest))
    if schema.kind == _Type.Avro:
        return _avro(data, slices, _node(schema, newest))
    return binaries(data, slices)


def _node(schema: TopicSchema, newest: TopicSchema) -> Node:
    if newest == schema or newest.kind not in _RECORDS:
        return schema.node()
    return read_as(schema.node(), newest.node())


def _avro(data: Data, slices: Slices, node: Node) -> pa.Array:
    present = slices.length > 0
    if present.all():
        return Walk(data, slices.start, slices.start + slices.length).read(node)
    rows = np.flatnonzero(present)
    start = slices.start[rows]
    array = Walk(data, start, start + slices.length[rows]).read(node)
    place = np.zeros(len(present), np.int64)
    place[rows] = np.arange(len(rows))
    return array.take(vector(place, present))


def _blamed(slab: "_Part | Slab", schema: TopicSchema, error: NotParsed) -> ValueNotRead:
    for row in range(len(slab.value.start)):
        try:
            _read(_some(slab, np.array([row])), schema, schema)
        except NotParsed as reason:
            data = slab.data[slab.value.start[row] :][: max(0, int(slab.value.length[row]))]
            return ValueNotRead(
                f"A value does not match its topic's schema ({reason}): {data.tobytes()[:60]!r}. "
                "Read raw values with rawValue=true"
            )
    return ValueNotRead(str(error))


def one_schema(found: Sequence[tuple[str, TopicSchema | None]], differ: bool) -> TopicSchema | None:
    """The common schema of all topics. If they differ: None if they may, else raises NotAllowed."""
    first = found[0][1] if found else None
    if all(schema == first for _, schema in found):
        return first
    if differ:
        return None
    names = ", ".join(name for name, _ in found[:_NAMED])
    names += f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    raise NotAllowed(
        f"The topics {names} have different schemas: read them separately, or read raw values "
        "with allowDifferentTopicSchemas=true"
    )
