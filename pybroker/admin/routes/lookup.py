"""Which broker serves a topic: for clients that were given an http:// service URL."""

from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from pybroker.admin.operation import WORDS, DescribedRoute
from pybroker.admin.routing import asked, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.base.json_schema import TEXT, fields, record
from pybroker.base.listeners import Listener
from pybroker.broker.brokers.ownership import NotServedHere
from pybroker.broker.brokers.remote_namespaces import check_namespace

_TOPIC = "{domain:domain}/{tenant:segment}/{namespace:segment}/{topic:form}"


class LookupRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services

    def routes(self) -> list[DescribedRoute]:
        path = f"/lookup/v2/topic/{_TOPIC}"
        names = "brokerUrl brokerUrlTls httpUrl httpUrlTls nativeUrl brokerUrlSsl"
        urls = record("LookupData", fields(TEXT, names))
        return [
            route(
                "GET", path, self.topic, urls, query={"listenerName": TEXT, "authoritative": TEXT}
            ),
            route("GET", f"{path}/bundle", self.bundle, WORDS),
        ]

    async def bundle(self, request: Request) -> Response:
        """The bundle of a topic: its range of hashes."""
        name = topic_of(request)
        await check_namespace(self._services.topics, name.namespace_name)
        return PlainTextResponse(await self._services.topics.ownership.range_of(name))

    async def topic(self, request: Request) -> dict[str, Any]:
        services = self._services
        name = topic_of(request)
        await check_namespace(services.topics, name.namespace_name)
        listeners = services.listeners
        own = Listener(
            _as_reached(services.service_url, request),
            _as_reached(services.service_url_tls, request),
            _as_reached(services.admin_url, request),
            _as_reached(services.admin_url_tls, request),
        )
        listeners.told(_wanted_listener(request), own)  # refuses an unknown listener
        owner = await services.topics.ownership.lookup(
            name, asked(request, "authoritative") == "true"
        )
        if owner is not None:
            if not owner.serves:
                raise NotServedHere(name)  # the redirect makes that broker take the topic
            listeners, own = owner.listeners, Listener(*owner.address)
        told = listeners.told(_wanted_listener(request), own)
        return {
            "brokerUrl": told.broker_url,
            "brokerUrlTls": told.broker_url_tls,
            "httpUrl": told.http_url,
            "httpUrlTls": told.http_url_tls,
            "nativeUrl": told.broker_url,
            "brokerUrlSsl": told.broker_url_tls,
        }


def _wanted_listener(request: Request) -> str:
    return asked(request, "listenerName") or request.headers.get("X-Pulsar-ListenerName", "")


def _as_reached(url: str, request: Request) -> str:
    """The URL with the host that the client used, if the broker listens on all addresses."""
    parts = urlsplit(url)
    if parts.hostname not in ("0.0.0.0", "::"):
        return url
    host = request.url.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{parts.port}"
