"""Schemas of topics, by version: kept, found again, never changed.

A partition shares its partitioned topic's schemas. A version travels as 8 bytes, big-endian, from
0. Which schema may follow which is in compatibility. Differs: the strategy is always FULL.
"""

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from managed_ledger.storage.backend import MetadataStore
from pybroker.broker.schemas.compatibility import (
    AUTO_CONSUME,
    StoredSchema,
    why_not_full,
    why_not_readable,
)
from pybroker.errors import IncompatibleSchema, ServiceNotReady, TopicNotFound
from pybroker.names import TopicName
from pybroker.runtime import Clock

_PREFIX: Final = "/schemas/"


def schema_keys(metadata: MetadataStore, topic: TopicName) -> list[str]:
    """One a version, the oldest first."""
    return metadata.keys(_folder(topic))


def _folder(topic: TopicName) -> str:
    """Quoted: no topic's folder lies within another's."""
    return f"{_PREFIX}{quote(topic.partitioned_name.ledger_name, safe='')}/"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    number: int
    schema: StoredSchema
    added_at_ms: int  # 0 if that is not known
    deletion: bool = False  # it says that the ones before it are gone


class Schemas:
    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        is_going: Callable[[TopicName], bool] = lambda topic: False,
    ) -> None:
        """`is_going`: the topic is being deleted, and what comes now would outlive it."""
        self._metadata = metadata
        self._is_going = is_going
        self._clock = clock
        self._adding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add(self, topic: TopicName, schema: StoredSchema) -> int | None:
        """The version under which the schema is kept, new or found. Raises IncompatibleSchema.

        None for whoever takes what the topic has.
        """
        if schema.type == AUTO_CONSUME:
            return None
        async with self._locked(topic):
            return await self._add(topic, schema)

    async def check_consumer(
        self, topic: TopicName, schema: StoredSchema, idle: Callable[[], bool]
    ) -> None:
        """A consumer's schema is added to an idle topic without one; else it must be able to read
        what is there. Raises IncompatibleSchema.
        """
        if schema.type == AUTO_CONSUME:
            return
        async with self._locked(topic):
            present = self._present(topic)
            if not present and idle():
                await self._add(topic, schema)
                return
        if not present:
            raise IncompatibleSchema(f"{topic} has no schema and is in use: consume it without one")
        if (why := why_not_readable(schema, present[-1].schema)) is not None:
            raise IncompatibleSchema(f"The schema cannot read that of {topic}: {why}")

    async def _add(self, topic: TopicName, schema: StoredSchema) -> int:
        found = self.find(topic, schema)
        if found is not None:
            return found
        if (why := self.why_incompatible(topic, schema)) is not None:
            raise IncompatibleSchema(f"The schema is incompatible with that of {topic}: {why}")
        return await self._append(topic, schema)

    async def _append(self, topic: TopicName, schema: StoredSchema, deletion: bool = False) -> int:
        if self._is_going(topic):
            raise ServiceNotReady(f"{topic} is being deleted; try again")
        keys = schema_keys(self._metadata, topic)
        number = _number(keys[-1]) + 1 if keys else 0
        record = _encode(schema, self._clock.now_ms(), deletion)
        await self._metadata.put(f"{_folder(topic)}{number:012}", record, -1)
        return number

    def find(self, topic: TopicName, schema: StoredSchema) -> int | None:
        """The version of that schema."""
        same = (v.number for v in self._present(topic) if v.schema.same_as(schema))
        return next(same, None)

    def why_incompatible(self, topic: TopicName, schema: StoredSchema) -> str | None:
        """Why the schema may not follow the topic's latest; None if it may."""
        present = self._present(topic)
        return why_not_full(schema, present[-1].schema) if present else None

    def get(self, topic: TopicName, version: int | None = None) -> SchemaVersion:
        """The latest, or one version, be it deleted: messages of its time are still there.

        Raises TopicNotFound, as Apache Pulsar answers.
        """
        if version is None:
            found = self._present(topic)[-1:]
        else:
            keys = schema_keys(self._metadata, topic)
            wanted = f"{_folder(topic)}{version:012}"
            found = [self._read(wanted)] if wanted in keys else []
        if not found or found[0].deletion:
            raise TopicNotFound(
                f"{topic} has no schema" + ("" if version is None else f" {version}")
            )
        return found[0]

    def all(self, topic: TopicName) -> list[SchemaVersion]:
        """Those that were not deleted, the oldest first. Raises TopicNotFound if there is none."""
        self.get(topic)
        return self._present(topic)

    async def delete(self, topic: TopicName) -> int:
        """The version that stands for the deletion: later schemas have higher ones, so that no
        client that knew an old one takes it for them. Raises TopicNotFound.
        """
        async with self._locked(topic):
            latest = self.get(topic)
            return await self._append(topic, replace(latest.schema, data=b""), deletion=True)

    def _present(self, topic: TopicName) -> list[SchemaVersion]:
        """What came behind the last deletion."""
        present: list[SchemaVersion] = []
        for key in reversed(schema_keys(self._metadata, topic)):
            version = self._read(key)
            if version.deletion:
                break
            present.insert(0, version)
        return present

    def _locked(self, topic: TopicName) -> asyncio.Lock:
        return self._adding.setdefault(_folder(topic), asyncio.Lock())

    def _read(self, key: str) -> SchemaVersion:
        stored = self._metadata.get(key)
        assert stored is not None, key
        record = json.loads(stored.value)
        data = base64.b64decode(record["data"])
        return SchemaVersion(
            _number(key),
            StoredSchema(record["name"], record["type"], data, record["properties"]),
            record.get("added_at_ms", 0),
            record.get("deletion", False),
        )


def _number(key: str) -> int:
    return int(key.rsplit("/", 1)[1])


def _encode(schema: StoredSchema, added_at_ms: int, deletion: bool) -> bytes:
    record = {
        "name": schema.name,
        "type": schema.type,
        "data": base64.b64encode(schema.data).decode(),
        "properties": dict(schema.properties),
        "added_at_ms": added_at_ms,
    }
    return json.dumps(record | ({"deletion": True} if deletion else {})).encode()


def version_bytes(version: int | None) -> bytes:
    """Nothing for a schema that has no version."""
    return b"" if version is None else version.to_bytes(8, "big")
