"""A DELETE whose body is not announced: some clients send one without a length.

HTTP takes such a body for the next request, and its answer would go to the next request's sender.
So the connection ends with the answer: what comes behind the request is never looked at.
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

        may_follow = scope["method"] == "DELETE" and not _announced(Headers(scope=scope))
        await self._app(scope, receive, send_and_close if may_follow else send)


def _announced(headers: Headers) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers
