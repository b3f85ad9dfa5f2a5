"""Clusters by name: this one, which always exists, and the operators' records of others.

Brokers are chosen without failure domains and isolation policies; these are kept for the tools that
manage them. Messages are not replicated.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from managed_ledger.storage.backend import MetadataStore
from pybroker.base.errors import NotAllowed
from pybroker.broker.namespaces.records import Records, check_name
from pybroker.broker.namespaces.tenants import Conflict, NotFound

# Records that belong to a cluster, each by name.
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
        """Raises NotFound unless the cluster is known."""
        self._record(name)

    def data(self, name: str) -> dict[str, Any]:
        """The data stored for the cluster. Raises NotFound."""
        return dict(self._record(name).get("data", {}))

    async def create(self, name: str, data: Mapping[str, Any]) -> None:
        check_name(name, "Cluster")

        def made(found: dict[str, Any] | None) -> Mapping[str, Any]:
            if name == self.own or found is not None:
                raise Conflict(f"Cluster {name} already exists")
            return {"data": dict(data)}

        await self._records.change(name, made)

    async def update(self, name: str, data: Mapping[str, Any]) -> None:
        await self._change(name, lambda record: {"data": dict(data)})

    async def _change(
        self, name: str, change: Callable[[dict[str, Any]], Mapping[str, Any]]
    ) -> None:
        """Replaces the fields that `change` returns."""

        def changed(_: dict[str, Any] | None) -> Mapping[str, Any]:
            record = self._record(name)
            return {**record, **change(record)}

        await self._records.change(name, changed)

    async def delete(self, name: str) -> None:
        if name == self.own:
            raise ClusterInUse(f"Cluster {name} is this broker's own")
        await self._records.delete(name)

    def parts(self, name: str, kind: str) -> dict[str, Any]:
        """FAILURE_DOMAINS or ISOLATION_POLICIES of a cluster. Raises NotFound."""
        return dict(self._record(name).get(kind, {}))

    async def put_part(
        self, name: str, kind: str, key: str, made: Callable[[dict[str, Any]], Mapping[str, Any]]
    ) -> None:
        """`made` receives the cluster's other records of that kind and returns the new one,
        consistent with them.
        """
        check_name(key, f"member of {kind}")

        def change(record: dict[str, Any]) -> Mapping[str, Any]:
            others = {n: each for n, each in record.get(kind, {}).items() if n != key}
            return {kind: record.get(kind, {}) | {key: dict(made(others))}}

        await self._change(name, change)

    async def delete_part(self, name: str, kind: str, key: str) -> None:
        """Raises NotFound if the cluster or its `key` does not exist."""

        def change(record: dict[str, Any]) -> Mapping[str, Any]:
            kept = dict(record.get(kind, {}))
            if kept.pop(key, None) is None:
                raise NotFound(f"Cluster {name} has no {key} among its {kind}")
            return {kind: kept}

        await self._change(name, change)

    def _record(self, name: str) -> dict[str, Any]:
        return (self._records.find(name) or {}) if name == self.own else self._records.get(name)
