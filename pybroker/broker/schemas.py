"""Schemas of topics, by version: kept, found again, never changed.

A partition shares its partitioned topic's schemas. A version travels as 8 bytes, big-endian, from
0. Differs: beyond the schema's type there is no compatibility check yet.
"""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from managed_ledger.storage.backend import MetadataStore
from pybroker.errors import IncompatibleSchema, TopicNotFound
from pybroker.names import TopicName

_PREFIX: Final = "/schemas/"
# Values of Schema.Type.
_NONE: Final = 0
_AUTO_CONSUME: Final = 21
_DESCRIBE_NOTHING: Final = (_NONE, _AUTO_CONSUME)


def schema_keys(metadata: MetadataStore, topic: TopicName) -> list[str]:
    """One a version, the oldest first."""
    return metadata.keys(_folder(topic))


def _folder(topic: TopicName) -> str:
    """Quoted: no topic's folder lies within another's."""
    return f"{_PREFIX}{quote(topic.partitioned_name.ledger_name, safe='')}/"


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """`type` is the wire's number; `data` what the type defines (an Avro record as JSON, …)."""

    name: str
    type: int
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)

    def same_as(self, other: "StoredSchema") -> bool:
        return self.type == other.type and self.data == other.data


class Schemas:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._adding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add(self, topic: TopicName, schema: StoredSchema) -> int | None:
        """The version under which the schema is kept, new or found. Raises IncompatibleSchema.

        None for those that describe nothing: bytes as they are, or whatever the topic has.
        """
        if schema.type in _DESCRIBE_NOTHING:
            return None
        async with self._adding.setdefault(_folder(topic), asyncio.Lock()):
            return await self._add(topic, schema)

    async def _add(self, topic: TopicName, schema: StoredSchema) -> int:
        versions = schema_keys(self._metadata, topic)
        for key in versions:
            if self._read(key).same_as(schema):
                return int(key.rsplit("/", 1)[1])
        if versions and (latest := self._read(versions[-1])).type != schema.type:
            raise IncompatibleSchema(
                f"{topic} has schema type {latest.type}; a schema of type {schema.type} is "
                "incompatible with it"
            )
        version = int(versions[-1].rsplit("/", 1)[1]) + 1 if versions else 0
        await self._metadata.put(f"{_folder(topic)}{version:012}", _encode(schema), -1)
        return version

    def get(self, topic: TopicName, version: int | None = None) -> tuple[int, StoredSchema]:
        """The latest, or one version. Raises TopicNotFound, as Apache Pulsar answers."""
        versions = schema_keys(self._metadata, topic)
        if version is not None:
            wanted = f"{_folder(topic)}{version:012}"
            versions = [wanted] if wanted in versions else []
        if not versions:
            raise TopicNotFound(
                f"{topic} has no schema" + ("" if version is None else f" {version}")
            )
        return int(versions[-1].rsplit("/", 1)[1]), self._read(versions[-1])

    async def delete(self, topic: TopicName) -> None:
        for key in schema_keys(self._metadata, topic):
            await self._metadata.delete(key)

    def _read(self, key: str) -> StoredSchema:
        stored = self._metadata.get(key)
        assert stored is not None, key
        record = json.loads(stored.value)
        return StoredSchema(
            record["name"],
            record["type"],
            base64.b64decode(record["data"]),
            record["properties"],
        )


def _encode(schema: StoredSchema) -> bytes:
    record = {
        "name": schema.name,
        "type": schema.type,
        "data": base64.b64encode(schema.data).decode(),
        "properties": dict(schema.properties),
    }
    return json.dumps(record).encode()


def version_bytes(version: int | None) -> bytes:
    """Nothing for a schema that has no version."""
    return b"" if version is None else version.to_bytes(8, "big")
