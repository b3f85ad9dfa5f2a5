"""Permissions of roles in a namespace, on a topic and on a subscription.

Requests are answered when the change has taken effect on every connection.
"""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.http.permitted import identity_of
from pybroker.admin.operation import MUCH_BYTES, Body, DescribedRoute
from pybroker.admin.routing import NAMESPACE, TOPIC, namespace_of, read_json, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.json_schema import TEXT, choice, list_of, map_of, taken
from pybroker.base.names import TopicName, any_topic
from pybroker.broker.namespaces.permissions import OnTopic, check_role, merged
from pybroker.security.authorization import ACTIONS, Need, Target

_MOST: Final = 1000  # roles or topics per request
_NAMESPACES: Final = "/admin/v2/namespaces"


class PermissionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._permissions = services.permissions
        self._applied = services.permissions_applied
        self._authorizer = services.authorizer
        self._tenants = services.topics.tenants

    def routes(self) -> list[DescribedRoute]:
        granted, role = f"{NAMESPACE}/permissions", "{role:segment}"
        subscription = "{subscription:segment}"
        by_role = map_of(TEXTS, most=None)
        actions, roles = list_of(choice(*ACTIONS), _MOST), list_of(TEXT, _MOST)
        one = taken({"topic": TEXT, "role": TEXT, "actions": actions}, ("topic", "role"))
        grants = Body(list_of(one, _MOST), most_bytes=MUCH_BYTES)
        return [
            route(
                "POST",
                f"{_NAMESPACES}/grantPermissionsOnTopics",
                self.grant_on_topics,
                body=grants,
                refuses=(404, 409, 412, 501),
            ),
            route(
                "POST",
                f"{_NAMESPACES}/revokePermissionsOnTopics",
                self.revoke_on_topics,
                body=grants,
                refuses=(404, 412),
            ),
            route("GET", granted, self.of_namespace, by_role),
            route(
                "GET", f"{granted}/subscription", self.of_subscriptions, map_of(TEXTS, most=None)
            ),
            route(
                "POST",
                f"{granted}/subscription/{subscription}",
                self.set_subscription_roles,
                body=roles,
                refuses=(409, 501),
            ),
            route("POST", f"{granted}/{role}", self.grant, body=actions, refuses=(409, 501)),
            route("DELETE", f"{granted}/{role}", self.revoke, refuses=(409,)),
            route(
                "DELETE",
                f"{granted}/{subscription}/{role}",
                self.revoke_on_subscription,
                refuses=(409,),
            ),
            route("GET", f"{TOPIC}/permissions", self.of_topic, by_role),
            route(
                "POST",
                f"{TOPIC}/permissions/{role}",
                self.grant_on_topic,
                body=actions,
                refuses=(409, 501),
            ),
            route("DELETE", f"{TOPIC}/permissions/{role}", self.revoke_on_topic, refuses=(409,)),
        ]

    # -- namespaces

    async def of_namespace(self, request: Request) -> Any:
        return self._record(namespace_of(request))["namespace_auth"]

    async def grant(self, request: Request) -> None:
        self._check_enabled()
        actions = _without_repetitions(await read_json(request))
        await self._permissions.grant(namespace_of(request), _role(request), actions)
        await self._applied()

    async def revoke(self, request: Request) -> None:
        await self._permissions.revoke(namespace_of(request), _role(request))
        await self._applied()

    # -- subscriptions

    async def of_subscriptions(self, request: Request) -> Any:
        return self._record(namespace_of(request))["subscription_auth_roles"]

    async def set_subscription_roles(self, request: Request) -> None:
        self._check_enabled()
        roles = [check_role(role) for role in await read_json(request)]
        subscription = request.path_params["subscription"]
        await self._permissions.set_subscription_roles(namespace_of(request), subscription, roles)
        await self._applied()

    async def revoke_on_subscription(self, request: Request) -> None:
        subscription, role = request.path_params["subscription"], _role(request)
        namespace = namespace_of(request)
        await self._permissions.revoke_on_subscription(namespace, subscription, role)
        await self._applied()

    # -- topics

    async def of_topic(self, request: Request) -> Any:
        topic = topic_of(request)
        record = self._record(topic.namespace_name)
        names = dict.fromkeys((topic.partitioned_name, topic))
        on_topics = (record["destination_auth"].get(str(name), {}) for name in names)
        return merged(record["namespace_auth"], *on_topics)

    async def grant_on_topic(self, request: Request) -> None:
        self._check_enabled()
        actions = _without_repetitions(await read_json(request))
        await self._permissions.grant_on_topic(topic_of(request), _role(request), actions)
        await self._applied()

    async def revoke_on_topic(self, request: Request) -> None:
        topic, role = topic_of(request), _role(request)
        on_topic = self._record(topic.namespace_name)["destination_auth"].get(str(topic), {})
        if role not in on_topic:
            raise HTTPException(412, "Permissions are not set at the topic level")
        await self._permissions.set_on_topics([OnTopic(topic, role, None)])
        await self._applied()

    async def grant_on_topics(self, request: Request) -> None:
        """Grants the permissions in the body, a list of topics, each with a role and its actions.
        All are checked before any is granted.
        """
        self._check_enabled()
        mine = self._each_of_mine(request, await read_json(request))
        await self._permissions.set_on_topics(
            OnTopic(topic, role, _without_repetitions(each.get("actions") or []))
            for topic, role, each in mine
        )
        await self._applied()

    async def revoke_on_topics(self, request: Request) -> None:
        mine = self._each_of_mine(request, await read_json(request))
        await self._permissions.set_on_topics(OnTopic(topic, role, None) for topic, role, _ in mine)
        await self._applied()

    def _each_of_mine(self, request: Request, body: Any) -> list[tuple[TopicName, str, Any]]:
        """Topic, role and entry, for each entry of the body. Raises AuthorizationError unless the
        caller is an admin of every topic's tenant.
        """
        found = [(*_topic_and_role(each), each) for each in body]
        for topic, _, _ in found:
            if self._authorizer is not None:
                target = Target.of_topic(topic)
                identity = identity_of(request)
                self._authorizer.require(identity, Need.TENANT_ADMIN, target, "grant permissions")
            self._tenants.check_namespace(topic.namespace_name)
        return found

    # --

    def _record(self, namespace: str) -> dict[str, Any]:
        self._tenants.check_namespace(namespace)
        return self._permissions.record(namespace)

    def _check_enabled(self) -> None:
        if self._authorizer is None:
            raise HTTPException(501, "Authorization is not enabled (authorizationEnabled)")


def _role(request: Request) -> str:
    return check_role(request.path_params["role"])


def _without_repetitions(actions: list[str]) -> list[str]:
    return list(dict.fromkeys(actions))


def _topic_and_role(value: dict[str, Any]) -> tuple[TopicName, str]:
    return any_topic(value["topic"]), check_role(value["role"])
