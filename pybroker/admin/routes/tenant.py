"""Tenants: list, get, create, update, delete."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.finding import delete_namespace
from pybroker.admin.operation import Body, DescribedRoute, flags
from pybroker.admin.routing import flag, read_object, route, tenant_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.json_schema import TEXT, fields, list_of, record, taken

_TENANT: Final = "/admin/v2/tenants/{tenant:segment}"
_LISTS: Final = "adminRoles allowedClusters"
_INFO: Final = taken(fields(list_of(TEXT), _LISTS), title="TenantInfo")


class TenantRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._tenants = services.topics.tenants
        self._permissions_applied = services.permissions_applied
        self._clusters = services.clusters

    def routes(self) -> list[DescribedRoute]:
        info, shown = Body(_INFO, required=False), record("TenantInfo", fields(TEXTS, _LISTS))
        return [
            route("GET", "/admin/v2/tenants", self.list_all, TEXTS),
            route("GET", _TENANT, self.get, shown),
            route("PUT", _TENANT, self.create, body=info, refuses=(409,)),
            route("POST", _TENANT, self.update, body=info, refuses=(409,)),
            route("DELETE", _TENANT, self.delete, query=flags("force"), refuses=(405, 409)),
        ]

    async def list_all(self, _: Request) -> list[str]:
        return self._tenants.tenants()

    async def get(self, request: Request) -> dict[str, Any]:
        return self._tenants.tenant(tenant_of(request))

    async def create(self, request: Request) -> None:
        name, settings = tenant_of(request), await self._settings(request)
        await self._tenants.create_tenant(name, settings)

    async def update(self, request: Request) -> None:
        name, settings = tenant_of(request), await self._settings(request)
        await self._tenants.update_tenant(name, settings)
        await self._permissions_applied()

    async def delete(self, request: Request) -> None:
        """Deletes a tenant; with ?force=true also its namespaces with their topics."""
        name = tenant_of(request)
        self._tenants.tenant(name)
        if flag(request, "force"):
            namespaces = self._tenants.namespaces(name)
            for namespace in namespaces:  # check before anything is deleted
                self._tenants.check_deletable(namespace)
            for namespace in namespaces:
                await delete_namespace(self._topics, namespace)
        await self._tenants.delete_tenant(name)

    async def _settings(self, request: Request) -> dict[str, list[str]]:
        body = await read_object(request)
        known = self._clusters.names()
        clusters = body.get("allowedClusters") or [self._clusters.own]
        if not all(name in known for name in clusters):
            raise HTTPException(412, f"allowedClusters must be among: {', '.join(known)}")
        return {"adminRoles": body.get("adminRoles") or [], "allowedClusters": clusters}
