"""Runs uvicorn on the broker's own loop and socket; the broker handles signals and logging."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from pybroker.admin.http.answer_memory import AnswerMemory
from pybroker.admin.http.answering import Answering
from pybroker.admin.http.patience import HEAD_S, MAX_CONNECTIONS, ImpatientProtocol
from pybroker.base.accepting import ACCEPTED_A_TURN, let_many_wait, listen
from pybroker.security.tls_connection import TlsAcceptor, TlsListener

Endpoint = tuple[str, int]  # host and port

_DRAIN_TIMEOUT_S: Final = 5
_DRAIN_LOOK_S: Final = 0.005
_TICK_S: Final = 1.0
_ANSWER_BYTES: Final = 64 * 1024 * 1024
_COUNT_OF_A_NEW_DATE: Final = 0  # uvicorn renews the Date header at each multiple of ten

log = logging.getLogger(__name__)


class HttpServer:
    def __init__(self, app: ASGIApp, limit_bytes: int = _ANSWER_BYTES) -> None:
        """`limit_bytes` is for all large answers together."""
        config = uvicorn.Config(
            Answering(app, AnswerMemory(limit_bytes)),
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

    async def start(
        self, listener: socket.socket | Endpoint | None, tls: TlsListener | None = None
    ) -> None:
        """Serves on a bound socket, or on an endpoint where the loop listens. The server accepts
        requests when this returns.
        """
        self._server.tls = tls
        sockets = [listener] if isinstance(listener, socket.socket) else []
        self._server.endpoint = listener if isinstance(listener, tuple) else None
        self._serving = asyncio.create_task(self._server.serve(sockets=sockets), name="http")
        await self._server.ready.wait()

    async def stop(self, answer_timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
        """Stops after the running requests, or after a timeout; idempotent."""
        self._server.end(answer_timeout_s)
        if self._serving is not None:
            await self._serving


class _Tick:
    """Wakes uvicorn's main loop once a second for its Date header, and at once when the server
    ends.
    """

    in_real_time = True  # even in tests that advance the loop's time

    def __init__(self) -> None:
        self._due = asyncio.Event()

    def now(self) -> None:
        self._due.set()

    async def wait(self) -> None:
        timer = asyncio.get_running_loop().call_later(_TICK_S, self.now)
        try:
            await self._due.wait()
        finally:
            timer.cancel()
        self._due.clear()


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn server that `end` stops at once. uvicorn itself checks ten times a second whether
    it should stop, and then polls until its connections are closed.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.tls: TlsListener | None = None
        self.endpoint: Endpoint | None = None
        self._tls_acceptor: TlsAcceptor | None = None
        self._tick = _Tick()
        self._drain_s: float = _DRAIN_TIMEOUT_S

    def end(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self.should_exit = True
        self._tick.now()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            let_many_wait(listener)
        if self.endpoint is not None:
            loop = asyncio.get_running_loop()
            self.servers.append(await loop.create_server(self._new_protocol, *self.endpoint))
        if self.tls is not None:
            await self._listen_with_tls(self.tls)
        self.ready.set()

    async def _listen_with_tls(self, tls: TlsListener) -> None:
        """Listens with this broker's TLS: uvicorn's can neither reload certificates nor limit
        handshakes.
        """
        self._tls_acceptor = TlsAcceptor(tls.contexts, self._new_protocol, HEAD_S)
        self.servers.append(await listen(self._tls_acceptor, tls.socket))

    def _new_protocol(self) -> asyncio.Protocol:
        return ImpatientProtocol(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    async def main_loop(self) -> None:
        while not await self.on_tick(_COUNT_OF_A_NEW_DATE):
            await self._tick.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls_acceptor is not None:
            self._tls_acceptor.close()
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self._drain_s):
                await self._drained()
        except TimeoutError:
            tasks = list(self.server_state.tasks)
            if self._drain_s:
                log.warning("%d requests were cancelled: they took too long to end", len(tasks))
            for task in tasks:
                task.cancel()
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    async def _drained(self) -> None:
        state = self.server_state
        while state.connections or state.tasks:  # noqa: ASYNC110  uvicorn only counts them
            await asyncio.sleep(_DRAIN_LOOK_S)
        for server in self.servers:
            await server.wait_closed()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
