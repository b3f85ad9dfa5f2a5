"""Closes a connection, or notices that the client did, while a request is being answered."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")
# Keys in the scope; absent without a connection.
HANG_UP: Final = "pybroker.hang_up"
ENDLESS: Final = "pybroker.endless"


def with_hang_up(app: ASGIApp, hang_up: Callable[[], None], endless: Callable[[], None]) -> ASGIApp:
    """Adds two functions to the scope. `hang_up` closes the connection at once and discards what
    the peer has not read. `endless` declares that the response never ends by itself: a server that
    stops does not wait for it.
    """

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, HANG_UP: hang_up, ENDLESS: endless}, receive, send)

    return called


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of `work`. If the client hangs up first, cancels it and raises
    ClientDisconnect.

    Use it only for work that changes nothing, after the request's body was read.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    both: tuple[asyncio.Future[Any], ...] = (working, leaving)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
