"""The first checks of every HTTP request: size, time, and stated origin.

A browser on the same machine lets attackers in: a web page may post here (Origin), or reach this
port under the page's own name by DNS rebinding (Host). Both are refused without further processing.
"""

import asyncio
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybroker.base.runtime import own_turn

MAX_BODY_BYTES: Final = 1024 * 1024
MAX_HEADERS: Final = 100
BODY_TIMEOUT_S: Final = 10.0
_READING_METHODS: Final = ("GET", "HEAD", "OPTIONS")


class Guard:
    """`host_names` are allowed in a Host header, besides IP addresses; None allows all names."""

    def __init__(self, app: ASGIApp, host_names: Iterable[str] | None) -> None:
        self._app = app
        self._host_names = None if host_names is None else frozenset(host_names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await own_turn()  # a hundred simultaneous requests must not block other work
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            status, reason = refusal
            await JSONResponse({"reason": reason}, status)(scope, receive, send)
            return
        # Routes match the raw path: a topic's name may contain an encoded slash.
        raw_path = scope.get("raw_path") or scope["path"].encode()
        scope = {**scope, "path": raw_path.decode("latin-1")}
        await self._app(scope, _bounded(receive), send)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        if len(headers.raw) > MAX_HEADERS:
            return 431, f"The request has more than {MAX_HEADERS} headers"
        if not self._knows_host(headers.get("host")):
            return 403, "The Host header names another machine"
        if method not in _READING_METHODS and not same_origin(headers):
            return (
                403,
                "The Origin header names another site; cross-origin requests are not allowed",
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            return 400, "Content-Length and Transfer-Encoding are mutually exclusive"
        if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            return 415, "Send the body as it is: there is no Content-Encoding for requests here"
        if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
            return 413, f"The body is larger than {MAX_BODY_BYTES} bytes"
        return None

    def _knows_host(self, host: str | None) -> bool:
        if host is None:
            return True
        parts = _parts(f"//{host}")
        if self._host_names is None or parts is None:
            return parts is not None
        name = parts.hostname or ""
        return name in self._host_names or _is_address(name)


def _parts(url: str) -> SplitResult | None:
    """The parts of a URL; None if the text is none, such as half of an IPv6 address."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    if origin is None:
        return True
    parts = _parts(origin)
    return parts is not None and parts.netloc == headers.get("host")


def _bounded(receive: Receive) -> Receive:
    received_bytes, complete = 0, False
    due_s: float | None = None  # the deadline of the whole body

    async def bounded() -> Message:
        nonlocal received_bytes, complete, due_s
        if complete:
            return await receive()  # waits until the client disconnects
        if due_s is None:
            due_s = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        try:
            async with asyncio.timeout_at(due_s):
                message = await receive()
        except TimeoutError:
            raise HTTPException(
                408, f"The body did not arrive within {BODY_TIMEOUT_S:g} s"
            ) from None
        received_bytes += len(message.get("body", b""))
        if received_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body is larger than {MAX_BODY_BYTES} bytes")
        complete = not message.get("more_body", False)
        return message

    return bounded
