"""The policies of namespaces and topics: the same three routes for each, from the table of
policies.

GET returns the value that was set, or nothing; with ?applied=true the effective value. POST or PUT
sets, DELETE removes. Requests are answered when every loaded topic acts on the change.
"""

from collections.abc import Iterator
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.operation import DescribedRoute, flags
from pybroker.admin.routing import (
    NAMESPACE,
    TOPIC,
    asked,
    flag,
    namespace_of,
    read_json,
    read_text,
    route,
    topic_of,
)
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.policies import answers, body, value_query
from pybroker.base.names import TopicName
from pybroker.broker.policies.policy import Level, Policy
from pybroker.broker.policies.table import POLICIES
from pybroker.broker.topics import Topics

_REFUSES: Final = (406, 409, 412)


class PolicyRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._policies = services.topics.policies

    def routes(self) -> list[DescribedRoute]:
        return [made for policy in POLICIES for made in self._routes_of(policy)] + [
            route("DELETE", f"{TOPIC}/policies", self.remove_all, refuses=_REFUSES)
        ]

    def _routes_of(self, policy: Policy[Any]) -> Iterator[DescribedRoute]:
        of_namespace, of_topic = policy.namespace, policy.topic
        if of_namespace is not None and not of_namespace.by_hand:
            yield from self._family(NAMESPACE, of_namespace, _OfNamespace(self._topics, policy))
        if of_topic is not None and not of_topic.by_hand:
            yield from self._family(TOPIC, of_topic, _OfTopic(self._topics, policy))

    def _family(
        self, base: str, level: Level, policy: "_OfNamespace | _OfTopic"
    ) -> Iterator[DescribedRoute]:
        path = f"{base}/{level.path}"
        row, query = policy.policy, flags(*policy.also)
        applied, value = query | flags("applied"), query | value_query(row, level)
        yield route("GET", path, policy.get, answers(row, level), query=applied)
        yield route(
            level.verb, path, policy.set, query=value, body=body(row, level), refuses=_REFUSES
        )
        if level.removable:
            yield route("DELETE", path, policy.remove, query=query, refuses=_REFUSES)

    async def remove_all(self, request: Request) -> None:
        """Removes the policies set for the topic itself."""
        topic = existing_topic(self._topics, request)
        await self._policies.forget_topic(topic)
        await self._topics.following.told()


class _OfNamespace:
    also: Final[tuple[str, ...]] = ()  # further query parameters of all three routes

    def __init__(self, topics: Topics, policy: Policy[Any]) -> None:
        assert policy.namespace is not None
        self._topics = topics
        self.policy = policy
        self._level = policy.namespace

    async def get(self, request: Request) -> Any:
        namespace = namespace_of(request)
        if flag(request, "applied"):
            self._topics.tenants.check_namespace(namespace)
            return self._topics.policies.of_namespace(namespace)[self.policy]
        found = self._topics.policies.set_of_namespace(namespace, self.policy)
        return self._level.unset if found is None else found

    async def set(self, request: Request) -> None:
        await self._change(request, await value_of(request, self._level))

    async def remove(self, request: Request) -> None:
        await self._change(request, None)

    async def _change(self, request: Request, value: Any) -> None:
        namespace = namespace_of(request)
        await self._topics.policies.set_for_namespace(namespace, self.policy, value)
        await self._topics.following.told()


class _OfTopic:
    also: Final[tuple[str, ...]] = ("isGlobal",)

    def __init__(self, topics: Topics, policy: Policy[Any]) -> None:
        assert policy.topic is not None
        self._topics = topics
        self.policy = policy
        self._level = policy.topic

    async def get(self, request: Request) -> Any:
        topic = existing_topic(self._topics, request)
        if flag(request, "applied"):
            return self._topics.policies.of(topic)[self.policy]
        everywhere = flag(request, "isGlobal")
        found = self._topics.policies.set_of_topic(topic, self.policy, everywhere)
        return self._level.unset if found is None else found

    async def set(self, request: Request) -> None:
        await self._change(request, await value_of(request, self._level))

    async def remove(self, request: Request) -> None:
        await self._change(request, None)

    async def _change(self, request: Request, value: Any) -> None:
        topic, everywhere = existing_topic(self._topics, request), flag(request, "isGlobal")
        await self._topics.policies.set_for_topic(topic, self.policy, value, everywhere)
        await self._topics.following.told()


def existing_topic(topics: Topics, request: Request) -> TopicName:
    """The topic in the path; for a partition, its partitioned topic. Raises TopicNotFound."""
    name = topic_of(request).partitioned_name
    topics.check_there(name)
    return name


async def value_of(request: Request, level: Level) -> Any:
    """The value in the body or the query. None or null removes the policy."""
    if level.bare:
        return await read_text(request)
    if not level.by_query:
        return await read_json(request, level.meant)
    text = asked(request, level.path)
    if text is None:
        return None
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit():
        raise HTTPException(400, f"{level.path} must be a whole number")
    return int(text) if len(text) < 20 else -1
