"""The topics of each namespace: names that a client can use, sorted, and their hash.

A list is computed at the first request, a few names at a time, and kept. It changes only when a
topic is created or deleted: the metadata store reports this or, for a non-persistent topic, the
broker itself. So repeated requests cost nothing.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from managed_ledger.checksum import crc32c
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import LEDGERS_PREFIX
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.names import SPARK_TOPICS, TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.namespaces.tenants import PARTITIONED_PREFIX, Tenants

_NAMES_A_TURN: Final = 500
_LAST: Final = chr(0x10FFFF)


def ignore_change(namespace: str) -> None:
    pass


class TopicList:
    """Immutable: each change creates a new one."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are full and sorted; non-persistent topics come first."""
        self.names = names

    @cached_property
    def hash(self) -> str:
        """The hash that Apache Pulsar's clients compute: the CRC's bytes, the lowest first."""
        return crc32c(",".join(self.names).encode()).to_bytes(4, "little").hex()

    @cached_property
    def persistent(self) -> "TopicList":
        return TopicList(self.names[self._persistent_from :]) if self._persistent_from else self

    @cached_property
    def nonpersistent(self) -> "TopicList":
        return TopicList(self.names[: self._persistent_from])

    @cached_property
    def of_users(self) -> "TopicList":
        """Without the control topics of PySpark's queries, which no pattern means.

        All names are of one namespace, so these are next to each other.
        """
        if not self.names:
            return self
        namespace = "/".join(self.names[-1].split("/", 4)[:4])
        begin = f"{namespace}/{SPARK_TOPICS}"
        first, end = bisect_left(self.names, begin), bisect_left(self.names, begin + _LAST)
        return TopicList([*self.names[:first], *self.names[end:]]) if first < end else self

    @property
    def _persistent_from(self) -> int:
        return bisect_left(self.names, "persistent://")

    def has(self, name: str) -> bool:
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    def with_or_without(self, name: str) -> "TopicList":
        """Without the name if the list has it, otherwise with it."""
        at = bisect_left(self.names, name)
        rest = at + self.has(name)
        between = [] if self.has(name) else [name]
        return TopicList([*self.names[:at], *between, *self.names[rest:]])


class TopicLists:
    def __init__(
        self, factory: ManagedLedgerFactory, metadata: MetadataStore, tenants: Tenants
    ) -> None:
        self._factory = factory
        self._tenants = tenants
        self._metadata = metadata
        self._known: dict[str, TopicList] = {}
        self._nonpersistent: dict[str, dict[TopicName, None]] = {}  # by namespace
        self._finding: dict[str, asyncio.Task[TopicList]] = {}
        self.on_change: Callable[[str], None] = ignore_change  # called with the namespace
        metadata.watch(LEDGERS_PREFIX, self._ledger_changed)
        metadata.watch(PARTITIONED_PREFIX, self._partitions_changed)

    def known(self, namespace: str) -> TopicList | None:
        """None if the list is not computed yet. Raises NotFound."""
        self._tenants.check_namespace(namespace)
        return self._known.get(namespace)

    async def get(self, namespace: str) -> TopicList:
        """The list, computed if necessary. Raises NotFound."""
        known = self.known(namespace)
        if known is not None:
            return known
        finding = self._finding.get(namespace)
        if finding is None:
            finding = self._finding[namespace] = asyncio.ensure_future(self._find(namespace))
            finding.add_done_callback(lambda done: self._found(namespace, done))
        return await asyncio.shield(finding)

    async def _find(self, namespace: str) -> TopicList:
        found: set[str] = set()
        pace = Pace(_NAMES_A_TURN)
        for partitioned in self._tenants.partitioned_topics(namespace):
            for index in range(self._tenants.partitions(partitioned)):
                found.add(str(partitioned.partition_at(index)))
                await pace.step()
        for key in self._metadata.keys(f"{LEDGERS_PREFIX}{namespace}/persistent/"):
            ledger = key.removeprefix(LEDGERS_PREFIX)
            name = _topic(ledger)
            if name is not None and self._factory.exists(ledger):
                found.add(str(name))
            await pace.step()
        found.update(map(str, self._nonpersistent.get(namespace, ())))
        return TopicList(sorted(found))

    def _found(self, namespace: str, done: asyncio.Task[TopicList]) -> None:
        """Keeps the list, unless it has changed meanwhile."""
        if self._finding.get(namespace) is done:
            del self._finding[namespace]
            if not done.cancelled() and done.exception() is None:
                self._known[namespace] = done.result()

    def nonpersistent_came(self, name: TopicName) -> None:
        self._nonpersistent.setdefault(name.namespace_name, {})[name] = None
        self._changed(name)

    def nonpersistent_went(self, name: TopicName) -> None:
        there = self._nonpersistent.get(name.namespace_name, {})
        there.pop(name, None)
        if not there:
            self._nonpersistent.pop(name.namespace_name, None)
        self._changed(name)

    def _ledger_changed(self, key: str) -> None:
        name = _topic(key.removeprefix(LEDGERS_PREFIX))
        if name is not None:
            self._changed(name)

    def _changed(self, name: TopicName) -> None:
        self._finding.pop(name.namespace_name, None)
        known = self._known.get(name.namespace_name)
        if known is not None and self._exists(name) is not known.has(str(name)):
            self._known[name.namespace_name] = known.with_or_without(str(name))
            self.on_change(name.namespace_name)
        elif known is None:
            self.on_change(name.namespace_name)

    def _exists(self, name: TopicName) -> bool:
        if name in self._nonpersistent.get(name.namespace_name, ()):
            return True
        if self._factory.exists(name.ledger_name):
            return True
        return 0 <= name.partition < self._tenants.partitions(name.partitioned_name)

    def _partitions_changed(self, key: str) -> None:
        namespace = "/".join(key.removeprefix(PARTITIONED_PREFIX).split("/", 2)[:2])
        self._known.pop(namespace, None)
        self._finding.pop(namespace, None)
        self.on_change(namespace)


def _topic(ledger: str) -> TopicName | None:
    """The topic of a ledger; None if it has none."""
    parts = ledger.split("/", 3)
    if len(parts) != 4 or parts[2] != "persistent":
        return None
    name = TopicName("persistent", parts[0], parts[1], parts[3])
    return None if name.internal else name
