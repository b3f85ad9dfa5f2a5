"""Calls a route on the broker that serves a topic or a bundle: within this process, or over HTTP.

This broker has checked the caller's permission; the other broker knows only that a broker asks.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.http.permitted import plain_path
from pybroker.admin.operation import DescribedRoute, Endpoint
from pybroker.admin.routing import BODY, PARSED
from pybroker.admin.shapes.common import refusal
from pybroker.base.errors import PulsarError, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.other_brokers import (
    ONLY_DOOMED,
    BundleOfAnotherBroker,
    Bundles,
    OtherBrokers,
    Reply,
)
from pybroker.broker.brokers.ownership import (
    BeingReleased,
    BrokerAddress,
    Bundle,
    NotServedHere,
    Ownership,
)

T = TypeVar("T")
R = TypeVar("R")
DELETION: Final = ("DELETE", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}")
SCALABLE_DELETION: Final = ("DELETE", "/admin/v2/scalable/{tenant}/{namespace}/{topic}")
_ATTEMPTS: Final = 40
_PAUSE_S: Final = 0.25  # while a bundle has no owner
_AT_ONCE: Final = 16  # topics or bundles
_REDIRECT: Final = 307


class Asking:
    def __init__(
        self,
        ownership: Ownership,
        bundles: Bundles,
        brokers: OtherBrokers,
        routes: Iterable[DescribedRoute],
    ) -> None:
        self._ownership = ownership
        self._bundles = bundles
        self.brokers = brokers
        self._endpoints: dict[tuple[str, str], Endpoint] = {
            (route.method, plain_path(route.path)): route.endpoint for route in routes
        }

    async def topic(
        self,
        request: Request,
        name: TopicName,
        method: str,
        template: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        **parts: str,
    ) -> Reply:
        """Asks the topic's broker. `template` is the path of a route. Its variables have the values
        of the request and of `parts`, except that the topic is `name`. Raises ServiceNotReady if
        the topic's broker does not answer.
        """
        own = {
            "domain": name.domain,
            "tenant": name.tenant,
            "namespace": name.namespace,
            "topic": name.local,
        }
        told = {**request.path_params, **own, **parts}

        async def find() -> BrokerAddress | None:
            return await self._ownership.owner_of(name)

        return await self._ask(find, str(name), request, method, template, told, query or {}, body)

    async def bundle(self, request: Request, bundle: Bundle, method: str, template: str) -> Reply:
        """As `topic`, for a bundle."""

        async def find() -> BrokerAddress | None:
            found = await self._bundles.lookup_bundle(bundle, False)
            return None if found is None else found.address

        told = {**request.path_params, "bundle": bundle.range}
        return await self._ask(find, str(bundle), request, method, template, told, {}, None)

    async def _ask(
        self,
        find: Callable[[], Awaitable[BrokerAddress | None]],
        what: str,
        request: Request,
        method: str,
        template: str,
        told: Mapping[str, Any],
        query: Mapping[str, str],
        body: Any,
    ) -> Reply:
        sent = b"" if body is None else json.dumps(body).encode()
        said = urlencode({**query, "authoritative": "true"})
        path = template.format(**{part: quote(str(text), safe="") for part, text in told.items()})
        for _ in range(_ATTEMPTS):
            with suppress(BeingReleased):
                if (owner := await find()) is None:
                    reply = await self._here(request, method, template, told, query, sent)
                else:
                    reply = await self.brokers.ask(owner, method, f"{path}?{said}", sent)
                if reply.status != _REDIRECT:
                    return reply
            await asyncio.sleep(_PAUSE_S)
        raise ServiceNotReady(f"{what} is moving between brokers; try again")

    async def _here(
        self,
        request: Request,
        method: str,
        template: str,
        told: Mapping[str, Any],
        query: Mapping[str, str],
        body: bytes,
    ) -> Reply:
        scope = {
            **request.scope,
            "method": method,
            "path_params": dict(told),
            "query_string": urlencode(query).encode(),
            BODY: body,
        }
        scope.pop(PARSED, None)
        called = Request(scope, request.receive)
        try:
            return reply_of(await self._endpoints[method, template](called))
        except (NotServedHere, BundleOfAnotherBroker):
            return Reply(_REDIRECT)
        except PulsarError as error:
            return Reply(error.http_status, json.dumps(refusal(error)).encode())
        except HTTPException as error:
            return Reply(error.status_code, json.dumps({"reason": error.detail}).encode())


async def all_of(
    things: Iterable[T], work: Callable[[T], Awaitable[R]]
) -> AsyncIterator[tuple[T, R]]:
    """Runs `work` for a few things at a time; yields the results in order."""
    waiting = list(things)
    for at in range(0, len(waiting), _AT_ONCE):
        some = waiting[at : at + _AT_ONCE]
        for each, result in zip(some, await asyncio.gather(*map(work, some)), strict=True):
            yield each, result


def continues(request: Request) -> bool:
    """Whether the request only continues a deletion. The parameter is not for users, so the routes
    do not declare it.
    """
    return request.query_params.get(ONLY_DOOMED) == "true"


def reply_of(response: Response) -> Reply:
    return Reply(response.status_code, bytes(response.body))
