"""Tenants: list, get, create, update, delete."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from pybroker.admin.routing import read_object, route, tenant_of
from pybroker.admin.services import AdminServices
from pybroker.broker.tenants import Conflict

_TENANT = "/admin/v2/tenants/{tenant:segment}"


class TenantRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._tenants = services.topics.tenants
        self._permissions_applied = services.permissions_applied
        self._clusters = services.clusters

    def routes(self) -> list[Route]:
        return [
            route("GET", "/admin/v2/tenants", self.list_all),
            route("GET", _TENANT, self.get),
            route("PUT", _TENANT, self.create),
            route("POST", _TENANT, self.update),
            route("DELETE", _TENANT, self.delete),
        ]

    async def list_all(self, _: Request) -> list[str]:
        return self._tenants.tenants()

    async def get(self, request: Request) -> dict[str, Any]:
        return self._tenants.tenant(tenant_of(request))

    async def create(self, request: Request) -> None:
        name = tenant_of(request)
        if name in self._tenants.tenants():
            raise Conflict(f"Tenant {name} already exists")
        await self._tenants.put_tenant(name, await self._settings(request))

    async def update(self, request: Request) -> None:
        name = tenant_of(request)
        self._tenants.tenant(name)
        await self._tenants.put_tenant(name, await self._settings(request))
        await self._permissions_applied()

    async def delete(self, request: Request) -> None:
        await self._tenants.delete_tenant(tenant_of(request))

    async def _settings(self, request: Request) -> dict[str, list[str]]:
        body = await read_object(request)
        known = self._clusters.names()
        clusters = body.get("allowedClusters") or [self._clusters.own]
        if not isinstance(clusters, list) or not all(name in known for name in clusters):
            raise HTTPException(412, f"allowedClusters must be of {', '.join(known)}")
        roles = body.get("adminRoles") or []
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            raise HTTPException(400, "adminRoles must be a list of role names")
        return {"adminRoles": roles, "allowedClusters": clusters}
