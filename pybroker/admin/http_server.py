"""uvicorn on the broker's own loop and socket; signals and logging stay with the broker."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from pybroker.admin.patience import MAX_CONNECTIONS, ImpatientProtocol

_DRAIN_TIMEOUT_S: Final = 5


class HttpServer:
    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            http=ImpatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # Those that make room for others may not have gone yet.
            limit_concurrency=2 * MAX_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN_TIMEOUT_S,
        )
        self._server = _EmbeddedServer(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket; requests are answered when this returns."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")
        await self._server.ready.wait()

    async def stop(self) -> None:
        """Let running requests end; idempotent."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _EmbeddedServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
