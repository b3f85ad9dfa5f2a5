"""Which broker serves a topic: for clients that were given an http:// service URL."""

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from pybroker.admin.routing import route, topic_of
from pybroker.admin.services import AdminServices

_TOPIC = "{domain:domain}/{tenant:segment}/{namespace:segment}/{topic:segment}"


class LookupRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [route("GET", f"/lookup/v2/topic/{_TOPIC}", self.topic)]

    async def topic(self, request: Request) -> dict[str, Any]:
        services = self._services
        services.topics.tenants.check_namespace(topic_of(request).namespace_name)
        return {
            "brokerUrl": services.service_url,
            "httpUrl": services.admin_url,
            "nativeUrl": services.service_url,
            "brokerUrlSsl": "",
        }
