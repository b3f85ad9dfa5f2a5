"""Clusters by name: this one, which is always there, and what operators write down of others.

There is one broker, so nothing follows from failure domains and isolation policies; they are kept
for the tools that manage them. Messages are not replicated.
"""

from collections.abc import Mapping
from typing import Any, Final

from managed_ledger.storage.backend import MetadataStore
from pybroker.broker.records import Records, check_name
from pybroker.broker.tenants import Conflict, NotFound
from pybroker.errors import NotAllowed

# What is kept beside a cluster's own data, each by name.
FAILURE_DOMAINS: Final = "failureDomains"
ISOLATION_POLICIES: Final = "namespaceIsolationPolicies"


class ClusterInUse(NotAllowed):
    http_status = 412


class Clusters:
    def __init__(self, metadata: MetadataStore, own: str) -> None:
        self._records = Records(metadata, "/clusters/", "Cluster")
        self.own = own

    def names(self) -> list[str]:
        return sorted({self.own, *self._records.names()})

    def check(self, name: str) -> None:
        """Raises NotFound."""
        self._record(name)

    def data(self, name: str) -> dict[str, Any]:
        """What was set for it. Raises NotFound."""
        return dict(self._record(name).get("data", {}))

    async def create(self, name: str, data: Mapping[str, Any]) -> None:
        check_name(name, "Cluster")
        if name in self.names():
            raise Conflict(f"Cluster {name} already exists")
        await self._records.put(name, {"data": dict(data)})

    async def update(self, name: str, data: Mapping[str, Any]) -> None:
        await self._records.put(name, self._record(name) | {"data": dict(data)})

    async def delete(self, name: str) -> None:
        if name == self.own:
            raise ClusterInUse(f"Cluster {name} is this broker's own")
        await self._records.delete(name)

    def belongings(self, name: str, kind: str) -> dict[str, Any]:
        """FAILURE_DOMAINS or ISOLATION_POLICIES of a cluster. Raises NotFound."""
        return dict(self._record(name).get(kind, {}))

    async def put_belonging(self, name: str, kind: str, key: str, value: Mapping[str, Any]) -> None:
        check_name(key, f"member of {kind}")
        kept = self.belongings(name, kind) | {key: dict(value)}
        await self._records.put(name, self._record(name) | {kind: kept})

    async def delete_belonging(self, name: str, kind: str, key: str) -> None:
        """Raises NotFound."""
        kept = self.belongings(name, kind)
        if kept.pop(key, None) is None:
            raise NotFound(f"Cluster {name} has no {key} among its {kind}")
        await self._records.put(name, self._record(name) | {kind: kept})

    def _record(self, name: str) -> dict[str, Any]:
        return (self._records.find(name) or {}) if name == self.own else self._records.get(name)
