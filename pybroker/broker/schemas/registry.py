"""Schemas of topics, by version: stored, looked up, never changed.

A partition shares its partitioned topic's schemas. A version is transmitted as 8 bytes, big-endian,
starting at 0. The module compatibility decides which schema may follow another; the `rules` that
apply to a topic are passed in. A topic keeps a limited number of versions (known_versions). So
comparing a schema with all of them, one per turn of the loop, is a limited amount of work.
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

from managed_ledger.deletion import all_done
from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.errors import IncompatibleSchema, ServiceNotReady, TopicNotFound
from pybroker.base.names import TopicName
from pybroker.base.runtime import Clock, Pace
from pybroker.broker.schemas.compatibility import (
    AUTO_CONSUME,
    NONE,
    StoredSchema,
    Strategy,
    type_name,
    why_invalid,
    why_not_after,
)
from pybroker.broker.schemas.known_versions import (
    Known,
    KnownVersions,
    SchemaVersion,
    folder,
    folders_of,
    number_of,
    read_version,
    schema_keys,
    version_key,
)
from pybroker.logs import audit

_BYTES_A_TURN: Final = 256 * 1024
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """The rules for a topic's schemas, from its policies, its namespace's and the broker's."""

    strategy: Strategy = Strategy.FULL
    auto_update: bool = True  # producers may add versions
    enforced: bool = False  # producers without a schema are refused if there is one


def usual_rules(topic: TopicName) -> SchemaRules:
    return SchemaRules()


async def _at_once() -> None:
    """There are no other brokers."""


class Schemas:
    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        is_going: Callable[[TopicName], bool] = lambda topic: False,
        rules: Callable[[TopicName], SchemaRules] = usual_rules,
        caught_up: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        """`is_going`: whether the topic, or its namespace, is being deleted, so that additions
        would outlive it. `caught_up` returns when `metadata` shows what others wrote before the
        call.
        """
        self._metadata = metadata
        self._is_going = is_going
        self._clock = clock
        self.rules = rules
        self._caught_up = caught_up
        self._adding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known = KnownVersions(metadata)

    # -- for producers and consumers

    async def add(
        self, topic: TopicName, schema: StoredSchema, by_admin: bool = False
    ) -> int | None:
        """The version of the schema, new or existing; None for a client that accepts the topic's
        own schema. Raises IncompatibleSchema, ServiceNotReady.
        """
        if schema.type == AUTO_CONSUME:
            return None
        self._check_stays(topic)  # before any await: the topic might be gone by then
        async with self._locked(topic):
            return await self._add(topic, schema, by_admin)

    async def _add(self, topic: TopicName, schema: StoredSchema, by_admin: bool = False) -> int:
        """The brokers of a topic's partitions may add schemas at the same time, mostly the same
        one. A broker that was not the first judges the schema again.
        """
        for _ in range(_ATTEMPTS):
            try:
                return await self._add_to(topic, schema, await self._known.of(topic), by_admin)
            except BadVersion:
                await self._caught_up()
                self._check_stays(topic)
        raise ServiceNotReady(f"Other brokers keep adding schemas to {topic}; try again")

    async def _add_to(
        self, topic: TopicName, schema: StoredSchema, known: Known, by_admin: bool
    ) -> int:
        found = known.find(schema)
        if found is not None:
            return found
        rules = self.rules(topic)
        if not (rules.auto_update or by_admin):
            raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
        why = await self._why_not(topic, schema, rules.strategy, known)
        if why is not None:
            raise IncompatibleSchema(f"The schema is incompatible with that of {topic}: {why}")
        return await self._append(topic, schema, known)

    def check_without(self, topic: TopicName) -> None:
        """Checks whether a producer may connect without a schema. Raises IncompatibleSchema if
        not.
        """
        latest = self._latest(topic)
        if latest is not None and latest.schema.type != NONE and self.rules(topic).enforced:
            raise IncompatibleSchema(
                "Producers cannot connect or send message without a schema to topics with a schema "
                "when SchemaValidationEnforced is enabled"
            )

    async def check_consumer(self, topic: TopicName, schema: StoredSchema, idle: bool) -> None:
        """Checks that the consumer can read the existing data. The schema of an `idle` topic's
        first consumer defines the messages, and is stored. Raises IncompatibleSchema.
        """
        if schema.type == AUTO_CONSUME:
            return
        self._check_stays(topic)
        async with self._locked(topic):
            known, strategy = await self._known.of(topic), self.rules(topic).strategy.of_consumers
            if not known.versions:
                if idle and schema.type != NONE:
                    await self._add(topic, schema)
                if idle or schema.type == NONE or strategy is Strategy.ALWAYS_COMPATIBLE:
                    return
                raise IncompatibleSchema(
                    "Failed to add schema to an active topic with empty(BYTES) schema: "
                    f"new schema type {type_name(schema.type)}"
                )
            if known.find(schema) is not None:
                return
            why = await self._why_not(topic, schema, strategy, known)
        if why is not None:
            raise IncompatibleSchema(
                f"The schema cannot read data written with that of {topic}: {why}"
            )

    async def _why_not(
        self, topic: TopicName, schema: StoredSchema, strategy: Strategy, known: Known
    ) -> str | None:
        """Why the schema may not follow the existing versions; None if it may."""
        await asyncio.sleep(0)  # the previous check may have taken long enough
        if (why := why_invalid(schema)) is not None:
            return why
        compared = known.versions if strategy.transitive else known.versions[-1:]
        for version in compared:
            await asyncio.sleep(0)
            old = self._version(topic, version.number)
            if old is not None and (why := why_not_after(strategy, schema, old.schema)) is not None:
                return why
        return None

    async def _append(
        self, topic: TopicName, schema: StoredSchema, known: Known, deletion: bool = False
    ) -> int:
        self._check_stays(topic)
        if not deletion and (full := known.why_full(schema)) is not None:
            raise IncompatibleSchema(f"{topic} accepts no further schema: {full}")
        keys = schema_keys(self._metadata, topic)
        number = number_of(keys[-1]) + 1 if keys else 0
        record = _encode(schema, self._clock.now_ms(), deletion)
        await self._metadata.put(version_key(topic, number), record, -1)
        audit.done(f"{'delete schema by' if deletion else 'add schema'} version {number}", topic)
        return number

    def _check_stays(self, topic: TopicName) -> None:
        if self._is_going(topic):
            raise ServiceNotReady(f"{topic} is being deleted; try again")

    # -- for administrators

    async def find(self, topic: TopicName, schema: StoredSchema) -> int | None:
        """The version that has this schema."""
        return (await self._known.of(topic)).find(schema)

    async def why_incompatible(self, topic: TopicName, schema: StoredSchema) -> str | None:
        """Why the schema may not follow the topic's versions; None if it may."""
        known = await self._known.of(topic)
        return await self._why_not(topic, schema, self.rules(topic).strategy, known)

    def get(self, topic: TopicName, version: int | None = None) -> SchemaVersion:
        """The latest version, or a given one, even if it was deleted: messages that use it may
        still exist. Raises TopicNotFound.

        Differs: Apache Pulsar does not give a deleted version to consumers either, so they cannot
        read the messages that use it.
        """
        found = self._latest(topic) if version is None else self._version(topic, version)
        if found is None or found.deletion:
            raise _no_schema(topic, version)
        return found

    async def found(self, topic: TopicName, version: int | None = None) -> SchemaVersion:
        """Like `get`, with all that other brokers wrote before the call. Also raises
        ServiceNotReady.
        """
        try:
            return self.get(topic, version)
        except TopicNotFound:
            await self._caught_up()
            return self.get(topic, version)

    async def not_deleted(self, topic: TopicName, version: int) -> SchemaVersion:
        """The given version, unless it was deleted. Raises TopicNotFound."""
        known = await self._known.of(topic)
        if not any(each.number == version for each in known.versions):
            raise _no_schema(topic, version)
        return self.get(topic, version)

    def _latest(self, topic: TopicName) -> SchemaVersion | None:
        keys = schema_keys(self._metadata, topic)
        latest = read_version(self._metadata, keys[-1]) if keys else None
        return None if latest is None or latest.deletion else latest

    def _version(self, topic: TopicName, number: int) -> SchemaVersion | None:
        key = version_key(topic, number)
        return None if self._metadata.get(key) is None else read_version(self._metadata, key)

    async def all(self, topic: TopicName) -> list[SchemaVersion]:
        """Versions that were not deleted, oldest first."""
        known = await self._known.of(topic)
        found, pace = [], Pace(_BYTES_A_TURN)
        for version in known.versions:
            if (read := self._version(topic, version.number)) is not None:
                found.append(read)
            await pace.step(version.size_bytes)
        return found

    async def delete(self, topic: TopicName, force: bool = False) -> int:
        """Returns the version that represents the deletion: later schemas get higher versions, so
        no client takes them for an old schema that it knows. With `force` the records of all
        earlier versions are deleted too, and messages that use them can no longer be decoded.
        Raises TopicNotFound.
        """
        async with self._locked(topic):
            latest = self.get(topic)
            known = await self._known.of(topic)
            gone = replace(latest.schema, data=b"")
            number = await self._append(topic, gone, known, deletion=True)
            if force:
                keys = schema_keys(self._metadata, topic)
                before = [key for key in keys if number_of(key) < number]
                await all_done(map(self._metadata.delete, before))
            return number

    async def settled(self, topic: TopicName) -> None:
        """Returns when additions in progress have ended; none starts on a topic that is being
        deleted.
        """
        async with self._locked(topic):
            pass

    async def forget_namespace(self, namespace: str, only_while: KeyAt | None = None) -> None:
        """Deletes all schemas of a namespace that is being deleted, even of topics that never
        existed. None is added any more. Raises BadVersion if the condition does not hold.
        """
        within = folders_of(namespace)
        adding = [lock for where, lock in self._adding.items() if where.startswith(within)]
        for lock in adding:
            async with lock:
                pass
        delete, keys = self._metadata.delete, self._metadata.keys(within)
        await all_done(delete(key, only_while=only_while) for key in keys)

    def _locked(self, topic: TopicName) -> asyncio.Lock:
        return self._adding.setdefault(folder(topic), asyncio.Lock())


def _no_schema(topic: TopicName, version: int | None) -> TopicNotFound:
    return TopicNotFound(f"{topic} has no schema" + ("" if version is None else f" {version}"))


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
    """Empty for a schema without a version."""
    return b"" if version is None else version.to_bytes(8, "big")
