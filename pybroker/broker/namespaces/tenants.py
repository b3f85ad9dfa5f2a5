"""Tenants, namespaces and partitioned topics: small records by name.

They are in the metadata store as JSON; a namespace's record holds its policies, see policies/.
`public/default` and `pulsar/system` always exist, as in a standalone Apache Pulsar. As long as they
have no settings, they can be created with some: scripts for fresh brokers do that.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from managed_ledger.errors import BadVersion, CorruptStorage
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.base.names import (
    COORDINATOR_ASSIGN,
    SCALABLE,
    TopicName,
    check_namespace_name,
    check_tenant_name,
)

_TENANTS: Final = "/tenants/"
NAMESPACES: Final = "/namespaces/"
PERMISSIONS: Final = "/permissions/"
RESOURCE_QUOTAS: Final = "/resource-quotas/"
GOING: Final = "/namespaces-going/"
PARTITIONED_PREFIX: Final = "/partitioned-topics/"
SCALABLE_PREFIX: Final = "/scalable-topics/"
_MIGRATIONS: Final = "/migrations/"
BUILT_IN: Final = ("public/default", "pulsar/system")


class Conflict(PulsarError):
    """The object to create already exists, or the object to delete is still in use."""

    code = 22
    http_status = 409


class InUse(Conflict):
    """A topic with connected producers or consumers."""

    http_status = 412


class MadeScalable(Conflict):
    """An ordinary topic that is a part of a scalable one now."""


class ImpossiblePartitions(NotAllowed):
    """The number of partitions is out of range."""

    http_status = 406


class ImpossibleGrowth(NotAllowed):
    """The topic cannot grow to this number."""

    http_status = 422


class NotFound(PulsarError):
    code = 11
    http_status = 404


class Mark(NamedTuple):
    """States that a namespace is being deleted from all brokers of a cluster.

    The key of a mark is never used again. So whoever requires the mark cannot take a later deletion
    of the same namespace for his own.
    """

    at: KeyAt
    forced: bool  # the topics are deleted, too; otherwise it ends if there are topics


def partitions_key(name: TopicName) -> str:
    return PARTITIONED_PREFIX + name.ledger_name


def scalable_key(name: TopicName) -> str:
    """The key of a scalable topic's record. Quoted, so that it is one level."""
    return f"{SCALABLE_PREFIX}{name.namespace_name}/{quote(name.local, safe='')}"


def scalable_name(key: str) -> TopicName:
    """The topic with this `scalable_key`."""
    tenant, namespace, local = key.removeprefix(SCALABLE_PREFIX).split("/")
    return TopicName(SCALABLE, tenant, namespace, unquote(local))


def migration_key(name: TopicName) -> str:
    """The key that says that the ordinary topic may be made scalable, or was; see migration.py."""
    return _MIGRATIONS + quote(name.ledger_name, safe="")


class Tenants:
    def __init__(
        self, metadata: MetadataStore, config: BrokerConfig, rng: Random | None = None
    ) -> None:
        self._metadata = metadata
        self._config = config
        self._rng = rng or Random()
        self._writing = asyncio.Lock()
        self._going: list[str] = []  # namespaces, once per deletion in progress

    # -- tenants

    def tenants(self) -> list[str]:
        stored = {key.removeprefix(_TENANTS) for key in self._metadata.keys(_TENANTS)}
        return sorted(stored | {name.split("/")[0] for name in BUILT_IN})

    def tenant(self, name: str) -> dict[str, Any]:
        """Raises NotFound if the tenant does not exist."""
        if name not in self.tenants():
            raise NotFound(f"Tenant {name} does not exist")
        return self._new_tenant() | self._get(_TENANTS + name)

    def _new_tenant(self) -> dict[str, Any]:
        return {"adminRoles": [], "allowedClusters": [self._config.cluster_name]}

    async def create_tenant(self, name: str, settings: Mapping[str, Any]) -> None:
        """Raises Conflict if the tenant exists."""
        async with self._writing:
            if name in self.tenants() and not self._may_become(name, settings):
                raise Conflict(f"Tenant {name} already exists")
            with first(f"Tenant {name}"):
                await self.put_tenant(name, settings)

    def _may_become(self, tenant: str, settings: Mapping[str, Any]) -> bool:
        """Whether it is built in and has no settings yet, unlike the wanted tenant."""
        is_built_in = any(name.split("/")[0] == tenant for name in BUILT_IN)
        return is_built_in and self.tenant(tenant) == self._new_tenant() != settings

    async def update_tenant(self, name: str, settings: Mapping[str, Any]) -> None:
        """Raises NotFound if the tenant does not exist."""
        async with self._writing:
            self.tenant(name)
            await self.put_tenant(name, settings)

    async def put_tenant(self, name: str, settings: Mapping[str, Any]) -> None:
        check_tenant_name(name)
        await self._put(_TENANTS + name, settings)

    async def delete_tenant(self, name: str) -> None:
        async with self._writing:
            self.tenant(name)
            if self.namespaces(name):
                raise Conflict(f"Tenant {name} still has namespaces; delete them first")
            await self._metadata.delete(_TENANTS + name)

    # -- namespaces

    def namespaces(self, tenant: str) -> list[str]:
        """Full names, "tenant/namespace"."""
        stored = {k.removeprefix(NAMESPACES) for k in self._metadata.keys(NAMESPACES)}
        return sorted(n for n in stored | set(BUILT_IN) if n.split("/")[0] == tenant)

    def has_namespace(self, namespace: str) -> bool:
        if namespace in BUILT_IN:
            return True
        try:
            return self._metadata.get(NAMESPACES + namespace) is not None
        except CorruptStorage:  # it exists, and can be repaired
            return True

    def check_namespace(self, namespace: str) -> None:
        if not self.has_namespace(namespace):
            raise NotFound(
                "Namespace does not exist",
                f"create {namespace} with PUT /admin/v2/namespaces/{namespace}",
            )

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, Any], granted: Mapping[str, Any] | None = None
    ) -> None:
        """`granted` is its record of permissions. Raises NotFound, InvalidTopicName, Conflict."""
        check_namespace_name(namespace)
        async with self._writing:
            self.tenant(namespace.split("/")[0])
            if self._is_going(namespace):
                raise Conflict(
                    f"Namespace {namespace} is being deleted", "try again when that is finished"
                )
            is_new = not self.has_namespace(namespace)
            if not is_new and not ((policies or granted) and self._is_as_built_in(namespace)):
                raise Conflict(f"Namespace {namespace} already exists")
            # Queued in this order: if a crash keeps only the first, nothing is granted.
            created = [self._put(NAMESPACES + namespace, policies)]
            if granted:
                created.append(self._put(PERMISSIONS + namespace, granted))
            with first(f"Namespace {namespace}"):
                await asyncio.gather(*created)

    def _is_as_built_in(self, namespace: str) -> bool:
        """Whether it is built in and was given neither policies nor permissions yet."""
        keys = (NAMESPACES + namespace, PERMISSIONS + namespace)
        return namespace in BUILT_IN and not any(self._get(key) for key in keys)

    @contextmanager
    def going(self, namespace: str) -> Iterator[None]:
        """Marks the namespace as being deleted, so that no new topic outlives it."""
        self._going.append(namespace)
        try:
            yield
        finally:
            self._going.remove(namespace)

    def marks(self, namespace: str) -> list[Mark]:
        """The deletions of the namespace that have begun and not ended, on any broker. Several only
        if they began at the same time, or if a forced one followed another.
        """
        return [
            Mark(KeyAt(key, stored.version), json.loads(stored.value)["force"])
            for key in self._metadata.keys(f"{GOING}{namespace}/")
            if (stored := self._metadata.get(key)) is not None
        ]

    def marked(self) -> list[str]:
        """The namespaces that are being deleted from all brokers of a cluster."""
        keys = self._metadata.keys(GOING)
        return sorted({"/".join(key.removeprefix(GOING).split("/")[:2]) for key in keys})

    async def mark_going(self, namespace: str, force: bool) -> Mark:
        """Begin to delete the namespace from all brokers, or join a deletion that has begun. No
        broker creates anything in the namespace, nor the namespace itself, while it has a mark. The
        mark survives this broker: then another broker finishes the deletion.
        """
        for mark in self.marks(namespace):
            if mark.forced or not force:
                return mark
        key = f"{GOING}{namespace}/{self._rng.getrandbits(64):016x}"
        await self._metadata.put(key, json.dumps({"force": force}).encode(), -1)
        return Mark(KeyAt(key, 0), force)

    async def unmark(self, namespace: str, forced_too: bool, own: Mark | None = None) -> None:
        """The deletions have ended. Without `forced_too`, only those that needed an empty
        namespace. With `own`, raises BadVersion if others have ended that deletion: the marks that
        are there may be those of later ones.
        """
        only_while = None if own is None else own.at
        for mark in self.marks(namespace):
            if mark.at != only_while and (forced_too or not mark.forced):
                await self._metadata.delete(mark.at.key, only_while=only_while)
        if own is not None:
            await self._metadata.delete(own.at.key)

    def check_marked(self, namespace: str, mark: Mark) -> None:
        """Raises NotFound if the deletion has ended: another request or another broker has finished
        it. The namespace may exist again.
        """
        if self._metadata.get(mark.at.key) is None:
            raise NotFound(f"Namespace {namespace} was deleted by another request")

    def check_takes_topics(self, namespace: str) -> None:
        """Raises NotFound if the namespace does not exist or is being deleted."""
        self.check_namespace(namespace)
        if self._is_going(namespace):
            raise NotFound(f"Namespace {namespace} is being deleted")

    def takes_topics(self, namespace: str) -> bool:
        return self.has_namespace(namespace) and not self._is_going(namespace)

    def _is_going(self, namespace: str) -> bool:
        return namespace in self._going or bool(self.marks(namespace))

    def check_deletable(self, namespace: str) -> None:
        """Raises NotFound if the namespace does not exist, NotAllowed if it is built in."""
        self.check_namespace(namespace)
        if namespace in BUILT_IN:
            raise NotAllowed(f"Namespace {namespace} is built in and cannot be deleted")

    async def delete_namespace(self, namespace: str, only_while: KeyAt | None = None) -> None:
        """The caller must have deleted all topics. Raises NotFound, NotAllowed; BadVersion if the
        condition does not hold: then nothing has changed.
        """
        self.check_deletable(namespace)
        # All three are queued at once, in this order.
        kinds = (RESOURCE_QUOTAS, PERMISSIONS, NAMESPACES)
        await asyncio.gather(
            *(self._metadata.delete(kind + namespace, only_while=only_while) for kind in kinds)
        )

    async def put_built_in(self) -> None:
        """Gives the built-in tenants and namespaces a record, for other programs that read the
        storage.
        """
        cluster = self._config.cluster_name
        records: dict[str, Mapping[str, Any]] = {}
        for namespace in BUILT_IN:
            tenant = namespace.partition("/")[0]
            records[_TENANTS + tenant] = {"adminRoles": [], "allowedClusters": [cluster]}
            records[NAMESPACES + namespace] = {}
        for key, record in records.items():
            with suppress(BadVersion):  # it is there, or another broker was faster
                await self._metadata.put(key, json.dumps(record).encode(), -1)

    # -- partitioned topics

    def partitions(self, name: TopicName) -> int:
        """The number of partitions of a topic; 0 if it is not partitioned."""
        record = self._get(partitions_key(name))
        stored = 0 if record.get("deleted") else int(record.get("partitions", 0))
        if name == COORDINATOR_ASSIGN:
            return max(stored, self._config.transaction_coordinators)
        return stored

    def on_partitions(self, changed: Callable[[TopicName], None]) -> None:
        """`changed` is called when a topic got its partitions, got more, or lost them."""

        def look(key: str) -> None:
            changed(TopicName.of_ledger(key.removeprefix(PARTITIONED_PREFIX)))

        self._metadata.watch(PARTITIONED_PREFIX, look)

    def stored_coordinators(self) -> int:
        """The number of transaction coordinators in the metadata; 0 if it is not there yet."""
        return int(self._get(partitions_key(COORDINATOR_ASSIGN)).get("partitions", 0))

    async def refresh_partitions(self, name: TopicName) -> None:
        """Learn what another broker has just written about a partitioned topic."""
        await self._metadata.refresh(partitions_key(name))

    def doomed_partitions(self, name: TopicName) -> int:
        """The number of partitions while several brokers are deleting them; 0 otherwise."""
        record = self._get(partitions_key(name))
        return int(record.get("partitions", 0)) if record.get("deleted") else 0

    def doom_of(self, name: TopicName) -> KeyAt | None:
        """The record that states that all partitions are being deleted; None if they are not."""
        stored = self._metadata.get(partitions_key(name))
        is_doomed = stored is not None and self.doomed_partitions(name) > 0
        return KeyAt(partitions_key(name), stored.version) if stored and is_doomed else None

    def doomed_topics(self) -> list[TopicName]:
        """All partitioned topics that several brokers are deleting. Looks at all of them."""
        keys = self._metadata.keys(PARTITIONED_PREFIX)
        names = [TopicName.of_ledger(key.removeprefix(PARTITIONED_PREFIX)) for key in keys]
        return [name for name in names if self.doomed_partitions(name)]

    def is_doomed(self, name: TopicName) -> bool:
        """Whether the topic is being deleted with all its partitions, or with its namespace."""
        going = not self.takes_topics(name.namespace_name)
        return going or self.doomed_partitions(name.partitioned_name) > 0

    async def doom_partitions(self, name: TopicName, only_while: KeyAt | None = None) -> None:
        """Marks all partitions as being deleted, so that no broker recreates one. The mark survives
        this broker: then another broker finishes the deletion. Raises BadVersion if the condition
        does not hold. Source: Apache Pulsar's field `deleted`.
        """
        record = self._get(partitions_key(name))
        if record and not record.get("deleted"):
            value = json.dumps({**record, "deleted": True}).encode()
            await self._metadata.put(partitions_key(name), value, only_while=only_while)

    def partitioned_properties(self, name: TopicName) -> dict[str, str]:
        """The properties of a partitioned topic."""
        return dict(self._get(partitions_key(name)).get("properties", {}))

    async def set_partitions(
        self,
        name: TopicName,
        partitions: int,
        properties: Mapping[str, str] | None = None,
        only_while: KeyAt | None = None,
    ) -> None:
        """Without `properties` the existing ones stay. Raises ImpossiblePartitions, Conflict; with
        `only_while` BadVersion, also if another broker was faster.
        """
        most = self._config.max_num_partitions_per_partitioned_topic
        if not 1 <= partitions <= most:
            raise ImpossiblePartitions(
                f"{name}: partitions must be between 1 and {most}, not {partitions}"
            )
        kept = self.partitioned_properties(name) if properties is None else dict(properties)
        value = json.dumps({"partitions": partitions, "properties": kept}).encode()
        with nullcontext() if only_while else first(str(name)):
            await self._metadata.put(partitions_key(name), value, only_while=only_while)

    def partitioned_topics(self, namespace: str) -> list[TopicName]:
        tenant, _, local = namespace.partition("/")
        found = []
        for domain in ("persistent", "non-persistent"):
            prefix = f"{PARTITIONED_PREFIX}{namespace}/{domain}/"
            for key in self._metadata.keys(prefix):
                found.append(TopicName(domain, tenant, local, key.removeprefix(prefix)))
        return found

    # -- scalable topics

    def scalable_topics(self, namespace: str) -> list[TopicName]:
        """Sorted by name."""
        keys = self._metadata.keys(f"{SCALABLE_PREFIX}{namespace}/")
        return sorted(map(scalable_name, keys))

    def has_scalable_topic(self, name: TopicName) -> bool:
        return self._metadata.get(scalable_key(name)) is not None

    # -- records

    def _get(self, key: str) -> dict[str, Any]:
        stored = self._metadata.get(key)
        return dict(json.loads(stored.value)) if stored else {}

    async def _put(self, key: str, record: Mapping[str, Any]) -> None:
        await self._metadata.put(key, json.dumps(record).encode())


@contextmanager
def first(what: str) -> Iterator[None]:
    """Raises Conflict if another broker was faster."""
    try:
        yield
    except BadVersion:
        raise Conflict(f"{what}: another broker has just created or changed it") from None
