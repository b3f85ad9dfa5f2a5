"""Handles requests whose end is ambiguous: a DELETE with an unannounced body, as some clients send
it, and a request with both Content-Length and Transfer-Encoding.

Where one reader sees a body, another sees the next request, whose response would go to the wrong
sender. So the connection is closed after the response, and the data after such a request is never
processed.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class UnsaidBodies:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        clear = _has_a_clear_end(scope["method"], Headers(scope=scope))
        await self._app(scope, receive, send if clear else send_and_close)


def _has_a_clear_end(method: str, headers: Headers) -> bool:
    said = [name for name in ("content-length", "transfer-encoding") if name in headers]
    return len(said) == 1 or (not said and method != "DELETE")
