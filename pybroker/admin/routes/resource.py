"""Resource groups and quotas. They are stored for the tools that set them.

Rates are limited by the policies of namespaces and topics, and load is balanced between brokers by
bundles.
"""

from typing import Any, Final

from starlette.requests import Request

from pybroker.admin.operation import Body, DescribedRoute
from pybroker.admin.routing import namespace_of, read_object, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.json_schema import LONG, NUMBER, TRUTH, WHOLE, record, taken, whole
from pybroker.broker.namespaces.records import Records, check_name
from pybroker.broker.namespaces.tenants import RESOURCE_QUOTAS

_GROUP: Final = "/admin/v2/resourcegroups/{group:segment}"
_QUOTA: Final = "/admin/v2/resource-quotas"
_BUNDLE: Final = _QUOTA + "/{tenant:segment}/{namespace:segment}/{bundle:segment}"
_GROUP_FIELDS: Final = (
    "publishRateInMsgs",
    "publishRateInBytes",
    "dispatchRateInMsgs",
    "dispatchRateInBytes",
)
_DEFAULT_QUOTA: Final = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}
_QUOTA_FIELDS: Final = {**dict.fromkeys(_DEFAULT_QUOTA, NUMBER), "dynamic": TRUTH}
_GROUP_TAKEN: Final = Body(taken(dict.fromkeys(_GROUP_FIELDS, whole(-LONG - 1))), required=False)
_QUOTA_TAKEN: Final = Body(taken(_QUOTA_FIELDS), required=False)
_DEFAULT: Final = "default"  # name of a record; those of namespaces contain a slash


class ResourceRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._groups = services.resource_groups
        self._quotas = Records(services.metadata, RESOURCE_QUOTAS, "Resource quota")
        self._tenants = services.topics.tenants

    def routes(self) -> list[DescribedRoute]:
        group = record("ResourceGroup", dict.fromkeys(_GROUP_FIELDS, WHOLE), _GROUP_FIELDS)
        quota = record("ResourceQuota", _QUOTA_FIELDS)
        return [
            route("GET", "/admin/v2/resourcegroups", self.groups, TEXTS),
            route("GET", _GROUP, self.group, group),
            route("PUT", _GROUP, self.put_group, body=_GROUP_TAKEN, refuses=(409, 412)),
            route("DELETE", _GROUP, self.delete_group, refuses=(409,)),
            route("GET", _QUOTA, self.quota, quota),
            route("POST", _QUOTA, self.set_quota, body=_QUOTA_TAKEN, refuses=(409,)),
            route("GET", _BUNDLE, self.quota, quota),
            route("POST", _BUNDLE, self.set_quota, body=_QUOTA_TAKEN, refuses=(409,)),
            route("DELETE", _BUNDLE, self.reset_quota, refuses=(409,)),
        ]

    async def groups(self, _: Request) -> list[str]:
        return self._groups.names()

    async def group(self, request: Request) -> dict[str, Any]:
        return self._groups.get(request.path_params["group"])

    async def put_group(self, request: Request) -> None:
        """Omitted fields stay unchanged."""
        name, body = request.path_params["group"], await read_object(request)
        said = {field: body[field] for field in _GROUP_FIELDS if body.get(field) is not None}
        check_name(name, "resource group")
        await self._groups.change(name, lambda found: (found or {}) | said)

    async def delete_group(self, request: Request) -> None:
        await self._groups.delete(request.path_params["group"])

    async def quota(self, request: Request) -> dict[str, Any]:
        own = self._quotas.find(_DEFAULT) or _DEFAULT_QUOTA
        return own | self._of_namespace(request) if request.path_params else dict(own)

    async def set_quota(self, request: Request) -> None:
        body = await read_object(request)
        said = {field: body[field] for field in _DEFAULT_QUOTA if body.get(field) is not None}
        if not request.path_params:
            await self._quotas.put(_DEFAULT, _DEFAULT_QUOTA | said)
            return
        namespace = self._checked(request)
        await self._quotas.put(namespace, {"quota": said})

    async def reset_quota(self, request: Request) -> None:
        namespace = self._checked(request)
        if self._quotas.find(namespace) is not None:
            await self._quotas.delete(namespace)

    def _of_namespace(self, request: Request) -> dict[str, Any]:
        """The namespace's quota, whichever bundle the path names: all bundles share it."""
        found = self._quotas.find(self._checked(request)) or {}
        return dict(found.get("quota", {}))

    def _checked(self, request: Request) -> str:
        namespace = namespace_of(request)
        self._tenants.check_namespace(namespace)
        return namespace
