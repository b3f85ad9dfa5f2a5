"""Authenticates every HTTP request before anything else processes it.

Credentials come as `Authorization: Bearer` or `Basic`, or as the TLS client certificate. The
identity is stored in the request's scope, where the permission checks find it.
"""

import base64
import binascii
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pybroker.admin.shapes.common import refusal
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import PulsarError
from pybroker.logs import audit
from pybroker.security.authentication import Authentication
from pybroker.security.identity import Certificate, Credentials, Identity

IDENTITY: Final = "pybroker.identity"  # key in the scope
WITHIN: Final = "pybroker.within"  # key in the scope of a request from this process
CERTIFICATE: Final = "pybroker.certificate"
SHOWN: Final = "pybroker.shown"  # key in the scope: the credentials, without certificates
_WEB_SOCKETS: Final = "/ws/"
_TOKEN: Final = "token"  # query parameter and cookie of WebSockets
_METRICS: Final = ("/metrics", "/metrics/")
_CHALLENGES: Final = {"token": "Bearer", "basic": 'Basic realm="pybroker", charset="UTF-8"'}


class Authenticated:
    def __init__(self, app: ASGIApp, authentication: Authentication, config: BrokerConfig) -> None:
        self._app = app
        self._authentication = authentication
        self._open_paths = () if config.authenticate_metrics_endpoint else _METRICS
        schemes = [_CHALLENGES[m] for m in authentication.methods if m in _CHALLENGES]
        self._challenge = {"www-authenticate": ", ".join(schemes)} if schemes else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._open_paths:
            try:
                shown = _shown(_authorization(scope), scope)
                identity = await self._identity(scope, shown)
                words = [each for each in shown if each.certificate is None]
                scope = {**scope, IDENTITY: identity, SHOWN: words}
                _act_as(identity)
            except PulsarError as error:
                headers = self._challenge if error.http_status == 401 else {}
                answer = JSONResponse(refusal(error), error.http_status, headers)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _identity(self, scope: Scope, shown: list[Credentials]) -> Identity:
        headers = Headers(scope=scope)
        client = scope.get("client")
        return await self._authentication.identify_request(
            shown,
            headers.get("x-pulsar-auth-method-name", ""),
            client[0] if client else "unknown",
            headers.get("x-original-principal", ""),
        )


class Known:
    """Serves requests from this process, whose scope contains their identity if they have one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if IDENTITY in scope:
            _act_as(scope[IDENTITY])
        await self._app({**scope, WITHIN: True}, receive, send)


def _act_as(identity: Identity) -> None:
    address = audit.current_actor().address
    audit.act_as(audit.Actor("/".join(identity.roles), address))


def with_certificate(app: ASGIApp, certificate: Certificate) -> ASGIApp:
    """Puts the connection's certificate into the scope of each of its requests."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CERTIFICATE: certificate}, receive, send)

    return called


def _authorization(scope: Scope) -> str:
    """A browser's WebSocket cannot send this header. Apache Pulsar takes the token from the query
    instead; a cookie does not show it in logs of proxies.
    """
    headers = Headers(scope=scope)
    said = headers.get("authorization", "")
    if said or not scope["path"].startswith(_WEB_SOCKETS):
        return said
    request = HTTPConnection(scope)
    token = request.query_params.get(_TOKEN) or request.cookies.get(_TOKEN) or ""
    return token if not token or token.lower().startswith("bearer ") else f"Bearer {token}"


def _shown(authorization: str, scope: Scope) -> list[Credentials]:
    shown = []
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        shown.append(Credentials("token", value.strip().encode()))
    elif scheme.lower() == "basic":
        shown.append(Credentials("basic", _decoded(value)))
    if scope.get(CERTIFICATE):
        shown.append(Credentials("tls", certificate=scope[CERTIFICATE]))
    return shown


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""  # no user has an empty name and password
