"""Separates the console from the admin API: paths below /console are the console's.

The console is imported at its first request. If it is never opened, it costs the broker no time and
no memory.
"""

import asyncio
from importlib import import_module
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pybroker.admin.application import with_limits
from pybroker.admin.services import AdminServices

ROOT: Final = "/console"


class EntryPoint:
    """`app` answers all other paths; `api` is the admin API for requests whose scope contains the
    identity.
    """

    def __init__(self, app: ASGIApp, api: ASGIApp, services: AdminServices) -> None:
        self._app = app
        self._api = api
        self._services = services
        self._guarded = with_limits(self._console, services)
        self._application: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == ROOT or path.startswith(ROOT + "/"):
            await self._guarded(scope, receive, send)
        elif path == "/" and _is_a_browser(scope):
            await RedirectResponse(ROOT)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _console(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._application is None:
            loop = asyncio.get_running_loop()
            application = await loop.run_in_executor(None, self._made)
            if self._application is None:  # None: no other request has set it meanwhile
                self._application = application
        await self._application(scope, receive, send)

    def _made(self) -> ASGIApp:
        """Creates the console. Runs in a thread, because it takes 100 ms."""
        application: ASGIApp = import_module("pybroker.console.application").ConsoleApplication(
            self._api, self._services
        )
        return application


def _is_a_browser(scope: Scope) -> bool:
    accepted = Headers(scope=scope).get("accept", "")
    return scope["method"] in ("GET", "HEAD") and "text/html" in accepted
