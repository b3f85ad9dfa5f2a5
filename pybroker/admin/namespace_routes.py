"""Namespaces and those of their policies that have an effect here."""

from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from pybroker.admin.finding import unload_all
from pybroker.admin.routing import (
    NAMESPACE,
    flag,
    namespace_of,
    read_json,
    read_object,
    route,
    tenant_of,
)
from pybroker.admin.services import AdminServices
from pybroker.broker.tenants import Conflict
from pybroker.names import TopicName

_AUTO_CREATION = "autoTopicCreation"
_DEDUPLICATION = "deduplicationEnabled"


class NamespaceRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._tenants = services.topics.tenants
        self._cluster = services.config.cluster_name
        self._most_partitions = services.config.max_num_partitions_per_partitioned_topic

    def routes(self) -> list[Route]:
        return [
            route("GET", "/admin/v2/namespaces/{tenant:segment}", self.list_all),
            route("GET", NAMESPACE, self.policies),
            route("PUT", NAMESPACE, self.create),
            route("DELETE", NAMESPACE, self.delete),
            route("GET", f"{NAMESPACE}/topics", self.topics),
            route("GET", f"{NAMESPACE}/permissions", self.permissions),
            route("GET", f"{NAMESPACE}/{_AUTO_CREATION}", self.auto_creation),
            route("POST", f"{NAMESPACE}/{_AUTO_CREATION}", self.set_auto_creation),
            route("DELETE", f"{NAMESPACE}/{_AUTO_CREATION}", self.reset_auto_creation),
            route("GET", f"{NAMESPACE}/deduplication", self.deduplication),
            route("POST", f"{NAMESPACE}/deduplication", self.set_deduplication),
            route("DELETE", f"{NAMESPACE}/deduplication", self.reset_deduplication),
        ]

    async def list_all(self, request: Request) -> list[str]:
        tenant = tenant_of(request)
        self._tenants.tenant(tenant)
        return self._tenants.namespaces(tenant)

    async def policies(self, request: Request) -> dict[str, Any]:
        one_bundle = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
        standard = {"replication_clusters": [self._cluster], "bundles": one_bundle}
        return standard | self._tenants.policies(namespace_of(request))

    async def create(self, request: Request) -> None:
        body = await read_object(request)
        policies = {name: body[name] for name in (_AUTO_CREATION, _DEDUPLICATION) if name in body}
        await self._tenants.create_namespace(namespace_of(request), policies)

    async def delete(self, request: Request) -> None:
        """With ?force=true the topics go too, and whoever uses them is disconnected."""
        namespace = namespace_of(request)
        names = (await self._topics.lists.get(namespace)).names
        if names and not flag(request, "force"):
            raise Conflict(
                f"Namespace {namespace} has {len(names)} topics; delete them first or use force"
            )
        for partitioned in self._tenants.partitioned_topics(namespace):
            await self._topics.delete_partitioned(partitioned, force=True)
        for name in list((await self._topics.lists.get(namespace)).names):
            await self._topics.delete(TopicName.parse(name), force=True)
        await self._tenants.delete_namespace(namespace)

    async def topics(self, request: Request) -> Sequence[str]:
        """Persistent ones unless ?mode=NON_PERSISTENT or ALL."""
        found = await self._topics.lists.get(namespace_of(request))
        match request.query_params.get("mode", "").upper():
            case "NON_PERSISTENT":
                return found.nonpersistent.names
            case "ALL":
                return found.names
            case _:
                return found.persistent.names

    async def permissions(self, request: Request) -> dict[str, list[str]]:
        self._tenants.check_namespace(namespace_of(request))
        return {}

    # -- policies

    async def auto_creation(self, request: Request) -> Any:
        return self._policy(request, _AUTO_CREATION)

    async def set_auto_creation(self, request: Request) -> None:
        override = await read_object(request)
        self._check_auto_creation(override)
        await self._tenants.set_policy(namespace_of(request), _AUTO_CREATION, override)

    def _check_auto_creation(self, override: dict[str, Any]) -> None:
        """The type and the number of partitions matter only where creation is allowed."""
        if not isinstance(override.get("allowAutoTopicCreation", False), bool):
            raise HTTPException(400, "allowAutoTopicCreation must be true or false")
        if not override.get("allowAutoTopicCreation"):
            return
        kind, count = override.get("topicType"), override.get("defaultNumPartitions")
        if kind == "partitioned":
            if type(count) is not int or count < 1:
                raise HTTPException(412, "defaultNumPartitions must be 1 or more for partitioned")
            if count > self._most_partitions:
                raise HTTPException(406, f"There may be at most {self._most_partitions} partitions")
        elif kind != "non-partitioned":
            raise HTTPException(412, "topicType must be partitioned or non-partitioned")
        elif count is not None:
            raise HTTPException(412, "defaultNumPartitions must not be set for non-partitioned")

    async def reset_auto_creation(self, request: Request) -> None:
        await self._tenants.set_policy(namespace_of(request), _AUTO_CREATION, None)

    async def deduplication(self, request: Request) -> Any:
        return self._policy(request, _DEDUPLICATION)

    async def set_deduplication(self, request: Request) -> None:
        enabled = await read_json(request)
        if not isinstance(enabled, bool):
            raise HTTPException(400, "The body must be true or false")
        await self._change_deduplication(request, enabled)

    async def reset_deduplication(self, request: Request) -> None:
        await self._change_deduplication(request, None)

    async def _change_deduplication(self, request: Request, enabled: bool | None) -> None:
        namespace = namespace_of(request)
        await self._tenants.set_policy(namespace, _DEDUPLICATION, enabled)
        await unload_all(self._topics, namespace)  # a topic reads the policy when it is loaded

    def _policy(self, request: Request, name: str) -> Any:
        """None, which is 204 with no body, for a policy that was not set."""
        return self._tenants.policies(namespace_of(request)).get(name)
