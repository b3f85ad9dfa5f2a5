"""Policies with several values: backlog quotas by type, dispatch rates by subscription."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.operation import NOTHING, Answer, Body, DescribedRoute, flags
from pybroker.admin.routes.policy import existing_topic
from pybroker.admin.routing import NAMESPACE, TOPIC, asked, flag, namespace_of, read_object, route
from pybroker.admin.services import AdminServices
from pybroker.base.json_schema import choice
from pybroker.broker.policies.policies import Change
from pybroker.broker.policies.policy import Record
from pybroker.broker.policies.shapes import AGE, DISPATCH_RATE_SHAPE, QUOTA, SIZE
from pybroker.broker.policies.table import (
    BACKLOG_QUOTAS,
    SUBSCRIPTION_DISPATCH_RATE,
    SUBSCRIPTION_POLICIES,
)

_OF_SUBSCRIPTION: Final = TOPIC + "/{subscription:segment}/dispatchRate"


class QuotaRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._policies = services.topics.policies

    def routes(self) -> list[DescribedRoute]:
        kind = {"backlogQuotaType": choice(SIZE, AGE)}
        of_topic, quotas = kind | flags("isGlobal"), BACKLOG_QUOTAS.check.gives
        quota = Body(QUOTA.takes, required=False, misfit=None)
        return [
            route("GET", f"{NAMESPACE}/backlogQuotaMap", self.of_namespace, quotas),
            route(
                "POST", f"{NAMESPACE}/backlogQuota", self.set_for_namespace, query=kind, body=quota
            ),
            route("DELETE", f"{NAMESPACE}/backlogQuota", self.set_for_namespace, query=kind),
            route(
                "GET",
                f"{TOPIC}/backlogQuotaMap",
                self.of_topic,
                quotas,
                query=flags("applied", "isGlobal"),
            ),
            route("POST", f"{TOPIC}/backlogQuota", self.set_for_topic, query=of_topic, body=quota),
            route("DELETE", f"{TOPIC}/backlogQuota", self.set_for_topic, query=of_topic),
            route(
                "GET",
                _OF_SUBSCRIPTION,
                self.dispatch_rate,
                (Answer(DISPATCH_RATE_SHAPE.gives), NOTHING),
                query=flags("applied", "isGlobal"),
            ),
            route(
                "POST",
                _OF_SUBSCRIPTION,
                self.set_dispatch_rate,
                query=flags("isGlobal"),
                body=Body(DISPATCH_RATE_SHAPE.takes, required=False, misfit=None),
            ),
            route("DELETE", _OF_SUBSCRIPTION, self.set_dispatch_rate, query=flags("isGlobal")),
        ]

    # -- backlog quotas

    async def of_namespace(self, request: Request) -> Record:
        return self._policies.set_of_namespace(namespace_of(request), BACKLOG_QUOTAS) or {}

    async def set_for_namespace(self, request: Request) -> None:
        namespace, change = namespace_of(request), await _quota_change(request)
        await self._policies.change_for_namespace(namespace, BACKLOG_QUOTAS, change)
        await self._topics.following.told()

    async def of_topic(self, request: Request) -> Record:
        topic = existing_topic(self._topics, request)
        if flag(request, "applied"):
            return self._policies.of(topic)[BACKLOG_QUOTAS]
        return self._policies.set_of_topic(topic, BACKLOG_QUOTAS, flag(request, "isGlobal")) or {}

    async def set_for_topic(self, request: Request) -> None:
        topic, change = existing_topic(self._topics, request), await _quota_change(request)
        everywhere = flag(request, "isGlobal")
        await self._policies.change_for_topic(topic, BACKLOG_QUOTAS, change, everywhere)
        await self._topics.following.told()

    # -- of single subscriptions

    async def dispatch_rate(self, request: Request) -> Any:
        topic, name = existing_topic(self._topics, request), request.path_params["subscription"]
        if flag(request, "applied"):
            effective = self._policies.of(topic)
            own = effective[SUBSCRIPTION_POLICIES].get(name, {})
            return own.get("dispatchRate") or effective[SUBSCRIPTION_DISPATCH_RATE]
        everywhere = flag(request, "isGlobal")
        found = self._policies.set_of_topic(topic, SUBSCRIPTION_POLICIES, everywhere) or {}
        return found.get(name, {}).get("dispatchRate")

    async def set_dispatch_rate(self, request: Request) -> None:
        topic, name = existing_topic(self._topics, request), request.path_params["subscription"]
        body = await read_object(request) if request.method == "POST" else {}
        change = _part_change(name, {"dispatchRate": body} if body else None)
        everywhere = flag(request, "isGlobal")
        await self._policies.change_for_topic(topic, SUBSCRIPTION_POLICIES, change, everywhere)
        await self._topics.following.told()


async def _quota_change(request: Request) -> Change[Record]:
    kind = asked(request, "backlogQuotaType") or SIZE
    if kind not in (SIZE, AGE):
        raise HTTPException(400, f"backlogQuotaType must be {SIZE} or {AGE}")
    body = await read_object(request) if request.method == "POST" else {}
    return _part_change(kind, QUOTA(body) if body else None)


def _part_change(name: str, part: Record | None) -> Change[Record]:
    """Sets one of a policy's values, or removes it if `part` is None."""

    def change(now: Record | None) -> Record | None:
        rest = {other: kept for other, kept in (now or {}).items() if other != name}
        return (rest if part is None else rest | {name: part}) or None

    return change
