"""Resource groups and anti-affinity groups of namespaces, and the offload route that is separate
from the other policies. They are stored, without an effect on a single broker.
"""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pybroker.admin.operation import NOTHING, WORDS, Body, DescribedRoute
from pybroker.admin.routes.cluster import known_cluster
from pybroker.admin.routing import NAMESPACE, asked, namespace_of, read_json, route, tenant_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.json_schema import TEXT, TRUTH, fields
from pybroker.broker.namespaces.records import Records
from pybroker.broker.policies.kept import ANTI_AFFINITY, OFFLOAD, RESOURCE_GROUP

_RESOURCE_GROUP: Final = f"{NAMESPACE}/resourcegroup"
_GROUP_OF_CLUSTER: Final = "/{cluster:segment}/antiAffinity/{group:segment}"
# The second is the path that Apache Pulsar's own Java client uses.
_BASES: Final = ("/admin/v2/namespaces", "/admin/namespaces")


class GroupRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._clusters = services.clusters
        self._tenants = services.topics.tenants
        self._policies = services.topics.policies
        self._groups: Records = services.resource_groups

    def routes(self) -> list[DescribedRoute]:
        return [
            route("GET", _RESOURCE_GROUP, self.resource_group, (WORDS, NOTHING)),
            route(
                "POST",
                f"{_RESOURCE_GROUP}/{{group:segment}}",
                self.set_resource_group,
                refuses=(409,),
            ),
            route("DELETE", _RESOURCE_GROUP, self.remove_resource_group, refuses=(409,)),
            *(
                route(
                    "GET",
                    base + _GROUP_OF_CLUSTER,
                    self.anti_affinity_namespaces,
                    TEXTS,
                    query=fields(TEXT, "tenant property"),
                    refuses=(412,),
                )
                for base in _BASES
            ),
            route(
                "GET",
                "/admin/namespaces/{tenant:segment}/{cluster:segment}",
                self.older_names,
                TEXTS,
            ),
            route("POST", f"{NAMESPACE}/migration", self.migrate, body=Body(TRUTH, required=False)),
            route(
                "DELETE", f"{NAMESPACE}/removeOffloadPolicies", self.remove_offload, refuses=(409,)
            ),
        ]

    async def resource_group(self, request: Request) -> Response | None:
        found = self._policies.set_of_namespace(namespace_of(request), RESOURCE_GROUP)
        return None if found is None else PlainTextResponse(found)

    async def set_resource_group(self, request: Request) -> None:
        """Assigns the namespace to an existing resource group."""
        group = request.path_params["group"]
        self._groups.get(group)
        await self._policies.set_for_namespace(namespace_of(request), RESOURCE_GROUP, group)

    async def remove_resource_group(self, request: Request) -> None:
        await self._policies.set_for_namespace(namespace_of(request), RESOURCE_GROUP, None)

    async def anti_affinity_namespaces(self, request: Request) -> list[str]:
        """The namespaces of a group: all, or those of ?tenant=…, which older clients call a
        property.
        """
        known_cluster(self._clusters, request)
        wanted = asked(request, "tenant") or asked(request, "property")
        tenants = self._tenants.tenants() if wanted is None else [wanted]
        return [
            namespace
            for tenant in tenants
            for namespace in self._tenants.namespaces(tenant)
            if self._policies.set_of_namespace(namespace, ANTI_AFFINITY)
            == request.path_params["group"]
        ]

    async def older_names(self, request: Request) -> list[str]:
        """Namespaces of the old form, with a cluster in their name: there are none."""
        self._tenants.tenant(tenant_of(request))
        known_cluster(self._clusters, request)
        return []

    async def migrate(self, request: Request) -> None:
        """Accepts only false: migration is not supported."""
        self._tenants.check_namespace(namespace_of(request))
        if await read_json(request, False):
            raise HTTPException(
                400, "Namespace migration is not supported: move the clients yourself"
            )

    async def remove_offload(self, request: Request) -> None:
        await self._policies.set_for_namespace(namespace_of(request), OFFLOAD, None)
