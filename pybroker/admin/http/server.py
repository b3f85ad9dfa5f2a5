"""uvicorn on the broker's own loop and socket; signals and logging stay with the broker."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from pybroker.admin.http.patience import HEAD_S, MAX_CONNECTIONS, ImpatientProtocol
from pybroker.base.accepting import ACCEPTED_A_TURN, let_many_wait, listen
from pybroker.security.tls_connection import TlsDoor, TlsListener

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
            backlog=ACCEPTED_A_TURN,
            # Connections that are being closed to make room may still be open.
            limit_concurrency=2 * MAX_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN_TIMEOUT_S,
        )
        self._server = _EmbeddedServer(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket | None, tls: TlsListener | None = None) -> None:
        """Serve on bound sockets; requests are answered when this returns."""
        self._server.tls = tls
        sockets = [] if listener is None else [listener]
        self._serving = asyncio.create_task(self._server.serve(sockets=sockets), name="http")
        await self._server.ready.wait()

    async def stop(self) -> None:
        """Let running requests finish; idempotent."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _EmbeddedServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.tls: TlsListener | None = None
        self._door: TlsDoor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            let_many_wait(listener)
        if self.tls is not None:
            await self._listen_with_tls(self.tls)
        self.ready.set()

    async def _listen_with_tls(self, tls: TlsListener) -> None:
        """uvicorn's own TLS can neither reload certificates nor limit handshakes."""
        self._door = TlsDoor(tls.contexts, self._new_protocol, HEAD_S)
        self.servers.append(await listen(self._door, tls.socket))

    def _new_protocol(self) -> asyncio.Protocol:
        return ImpatientProtocol(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._door is not None:
            self._door.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
