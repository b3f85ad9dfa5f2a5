"""The admin API is imported and built at its first request.

A broker that nobody asks over HTTP does without its hundred modules and hundreds of routes, which
take longer than the rest of a start.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from pybroker.admin.services import AdminServices

if TYPE_CHECKING:
    from pybroker.admin.application import Front


class AtFirstRequest:
    """Answers with `create_app`, which runs in a thread, so that others are served meanwhile.

    `front` imports what is put in front of the API. Requests that arrive together may each create
    an application; one is kept.
    """

    def __init__(self, services: AdminServices, front: "Callable[[], Front]") -> None:
        self._services = services
        self._front = front
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            app = await asyncio.get_running_loop().run_in_executor(None, self._create)
            if self._app is None:  # None: no other request has set it meanwhile
                self._app = app
        await self._app(scope, receive, send)

    def _create(self) -> ASGIApp:
        from pybroker.admin.application import create_app

        return create_app(self._services, self._front())
