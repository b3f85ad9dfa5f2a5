"""Namespaces: list, create, show, delete, and the policies that have no common routes."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pybroker.admin.finding import check_empty, delete_namespace
from pybroker.admin.operation import MUCH_BYTES, WORDS, Body, DescribedRoute, flags
from pybroker.admin.routes.bundle import shown_bundles
from pybroker.admin.routing import (
    NAMESPACE,
    asked,
    flag,
    namespace_of,
    read_json,
    read_object,
    route,
    tenant_of,
)
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.admin.shapes.policies import (
    AUTH_POLICIES_TAKEN,
    NAMESPACE_POLICIES,
    NAMESPACE_POLICIES_TAKEN,
)
from pybroker.base.json_schema import TEXT, list_of, misfit
from pybroker.broker.namespaces.permissions import record_of
from pybroker.broker.namespaces.tenants import NotFound
from pybroker.broker.policies.kept import PROPERTIES
from pybroker.broker.policies.policies import Change, checked_namespace, shown_namespace
from pybroker.broker.policies.policy import Record

_MOST_BUNDLES: Final = 4096  # their boundaries share one node of ZooKeeper, and each has its own
_PROPERTY: Final = NAMESPACE + "/property/{key:segment}"


# Also shown by Apache Pulsar; nothing is migrated here.
_NEVER: Final = {"deleted": False, "migrated": False}


class NamespaceRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._topics = services.topics
        self._tenants = services.topics.tenants
        self._permissions = services.permissions
        self._applied = services.permissions_applied
        self._cluster = services.config.cluster_name

    def routes(self) -> list[DescribedRoute]:
        policies = Body(
            NAMESPACE_POLICIES_TAKEN, required=False, misfit=None, most_bytes=MUCH_BYTES
        )
        replication, clusters = f"{NAMESPACE}/replication", Body(list_of(TEXT), misfit=412)
        return [
            route("GET", "/admin/v2/namespaces/{tenant:segment}", self.list_all, TEXTS),
            route("GET", NAMESPACE, self.policies, NAMESPACE_POLICIES),
            route("PUT", NAMESPACE, self.create, body=policies, refuses=(409,)),
            route("DELETE", NAMESPACE, self.delete, query=flags("force"), refuses=(405, 409)),
            route("GET", f"{NAMESPACE}/topics", self.topics, TEXTS, query={"mode": TEXT}),
            route("GET", replication, self.replication, TEXTS),
            route("POST", replication, self.set_replication, body=clusters),
            route("GET", _PROPERTY, self.property, WORDS),
            route("PUT", f"{_PROPERTY}/{{value:segment}}", self.set_property, refuses=(409,)),
            route("DELETE", _PROPERTY, self.remove_property, WORDS, refuses=(409,)),
        ]

    async def list_all(self, request: Request) -> list[str]:
        tenant = tenant_of(request)
        self._tenants.tenant(tenant)
        return self._tenants.namespaces(tenant)

    async def policies(self, request: Request) -> dict[str, Any]:
        namespace = namespace_of(request)
        self._tenants.check_namespace(namespace)
        bundles = await shown_bundles(self._services, namespace)
        standard = {"replication_clusters": [self._cluster], "bundles": bundles, **_NEVER}
        values = self._topics.policies.namespace_values(namespace)
        granted = {"auth_policies": self._permissions.record(namespace)}
        return standard | shown_namespace(values, self._cluster) | granted

    async def create(self, request: Request) -> None:
        """Creates a namespace with its policies and the grants of `auth_policies`."""
        body, namespace = await read_object(request), namespace_of(request)
        policies, said = checked_namespace(body, self._cluster), body.get("auth_policies") or {}
        if (why := misfit(said, AUTH_POLICIES_TAKEN, "auth_policies")) is not None:
            raise HTTPException(400, why)
        granted, bundles = record_of(namespace, said), _bundles_said(body)
        # Another broker may just have deleted it, or may be about to.
        await self._topics.ownership.refreshed()
        await self._tenants.create_namespace(namespace, policies, granted)
        if bundles and self._services.bundles is not None:
            with suppress(NotFound):  # another request has just deleted it
                await self._services.bundles.divide(namespace, bundles)
        await self._applied()

    async def delete(self, request: Request) -> None:
        """Deletes a namespace; with ?force=true also its topics, and disconnects their clients."""
        namespace, force = namespace_of(request), flag(request, "force")
        if not force:
            await check_empty(self._topics, namespace)
        await delete_namespace(self._topics, namespace, force)

    async def topics(self, request: Request) -> Sequence[str]:
        """The namespace's topics: persistent ones unless ?mode=NON_PERSISTENT or ALL."""
        found = await self._topics.lists.get(namespace_of(request))
        match (asked(request, "mode") or "").upper():
            case "NON_PERSISTENT":
                return found.nonpersistent.names
            case "ALL":
                return found.names
            case _:
                return found.persistent.names

    async def replication(self, request: Request) -> list[str]:
        self._tenants.check_namespace(namespace_of(request))
        return [self._cluster]

    async def set_replication(self, request: Request) -> None:
        self._tenants.check_namespace(namespace_of(request))
        clusters = await read_json(request)
        if clusters != [self._cluster]:
            raise HTTPException(412, f"The clusters must be {[self._cluster]}: it is the only one")

    # -- single properties

    async def property(self, request: Request) -> Response:
        key = request.path_params["key"]
        return PlainTextResponse(self._properties(request).get(key, ""))

    async def set_property(self, request: Request) -> None:
        key, value = request.path_params["key"], request.path_params["value"]
        await self._change_properties(request, lambda now: (now or {}) | {key: value})

    async def remove_property(self, request: Request) -> Response:
        """Removes a property and returns its old value."""
        key, removed = request.path_params["key"], ""

        def change(now: Record | None) -> Record:
            nonlocal removed
            left = dict(now or {})
            removed = left.pop(key, "")
            return left

        await self._change_properties(request, change)
        return PlainTextResponse(removed)

    def _properties(self, request: Request) -> dict[str, str]:
        found = self._topics.policies.set_of_namespace(namespace_of(request), PROPERTIES)
        return dict(found or {})

    async def _change_properties(self, request: Request, change: Change[Record]) -> None:
        namespace = namespace_of(request)
        await self._topics.policies.change_for_namespace(namespace, PROPERTIES, change)


def _bundles_said(body: Mapping[str, Any]) -> int:
    """The requested number of bundles of a new namespace; 0: the default."""
    said = body.get("bundles")
    number = said.get("numBundles") if isinstance(said, dict) else None
    if number is None:
        return 0
    if type(number) is not int or not 0 <= number <= _MOST_BUNDLES:
        raise HTTPException(
            412, f"Invalid number of bundles: numBundles must be from 1 to {_MOST_BUNDLES}"
        )
    return number
