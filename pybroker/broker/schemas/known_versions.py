"""An index of a topic's schema versions by digest, to find a version without reading all of them.

A topic's index is built on first use, and dropped when a version is added or deleted, or when too
many others are cached.
"""

import base64
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote

from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.schemas.compatibility import StoredSchema

MAX_VERSIONS: Final = 1000  # of a topic, since its last deletion
MAX_BYTES: Final = 4 * 1024 * 1024  # of a topic's schemas together
_PREFIX: Final = "/schemas/"
_MAX_KNOWN: Final = 20_000  # versions of all topics
_BYTES_A_TURN: Final = 256 * 1024


def folder(topic: TopicName) -> str:
    """Quoted, so that no topic's folder is within another's."""
    return f"{_PREFIX}{quote(topic.partitioned_name.ledger_name, safe='')}/"


def folders_of(namespace: str) -> str:
    """The common prefix of the folders of the namespace's topics, and of no others."""
    return _PREFIX + quote(f"{namespace}/", safe="")


def schema_keys(metadata: MetadataStore, topic: TopicName) -> list[str]:
    """One key per version, oldest first."""
    return metadata.keys(folder(topic))


def version_key(topic: TopicName, number: int) -> str:
    return f"{folder(topic)}{number:012}"


def number_of(key: str) -> int:
    return int(key.rsplit("/", 1)[1])


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    number: int
    schema: StoredSchema
    added_at_ms: int  # 0 if unknown
    deletion: bool = False  # a marker: earlier versions are deleted


def read_version(metadata: MetadataStore, key: str) -> SchemaVersion:
    stored = metadata.get(key)
    assert stored is not None, key
    record = json.loads(stored.value)
    data = base64.b64decode(record["data"])
    return SchemaVersion(
        number_of(key),
        StoredSchema(record["name"], record["type"], data, record["properties"]),
        record.get("added_at_ms", 0),
        record.get("deletion", False),
    )


class KnownVersion(NamedTuple):
    number: int
    digest: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Known:
    """The versions of one topic after the last deletion, oldest first."""

    versions: tuple[KnownVersion, ...]

    def find(self, schema: StoredSchema) -> int | None:
        digest = schema.digest
        return next((each.number for each in self.versions if each.digest == digest), None)

    def why_full(self, schema: StoredSchema) -> str | None:
        """Why the topic cannot store this schema as well; None if it can."""
        if len(self.versions) >= MAX_VERSIONS:
            return f"it already has {MAX_VERSIONS} versions"
        size_bytes = sum(each.size_bytes for each in self.versions) + schema.size_bytes
        if size_bytes > MAX_BYTES:
            return f"its versions would have {size_bytes} bytes, more than {MAX_BYTES}"
        return None


class KnownVersions:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._known: OrderedDict[str, Known] = (
            OrderedDict()
        )  # by folder; the most recently used one is last
        self._versions = 0
        self._changes = 0
        metadata.watch(_PREFIX, self._changed)

    async def of(self, topic: TopicName) -> Known:
        """The topic's index. The caller prevents concurrent additions, or tolerates them."""
        where = folder(topic)
        known = self._known.get(where)
        if known is not None:
            self._known.move_to_end(where)
            return known
        before = self._changes
        known = await self._read(topic)
        if self._changes == before:
            self._keep(where, known)
        return known

    async def _read(self, topic: TopicName) -> Known:
        found: list[KnownVersion] = []
        pace = Pace(_BYTES_A_TURN)
        for key in reversed(schema_keys(self._metadata, topic)):
            if self._metadata.get(key) is None:
                continue  # it was deleted while others had their turn
            version = read_version(self._metadata, key)
            if version.deletion:
                break
            size_bytes = version.schema.size_bytes
            found.append(KnownVersion(version.number, version.schema.digest, size_bytes))
            await pace.step(size_bytes)
        return Known(tuple(reversed(found)))

    def _keep(self, where: str, known: Known) -> None:
        self._forget(where)
        self._known[where] = known
        self._versions += 1 + len(known.versions)
        while self._versions > _MAX_KNOWN:
            self._forget(next(iter(self._known)))

    def _forget(self, where: str) -> None:
        known = self._known.pop(where, None)
        if known is not None:
            self._versions -= 1 + len(known.versions)

    def _changed(self, key: str) -> None:
        self._changes += 1
        self._forget(key[: key.rindex("/") + 1])
