"""The listening sockets: limits on connections, keep-alive, an orderly shutdown.

How many connections there may be is decided in `security/connection_places.py`; a refused one gets
the reason and is closed. A session closes its connection if CONNECT does not arrive in time, and if
the client stays silent for two keep-alive intervals despite a PING.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from pybroker.base.accepting import Endpoint, listen
from pybroker.base.errors import NotAllowed
from pybroker.base.runtime import sleep_in_real_time
from pybroker.security.connection_places import OF_A_MACHINE, ConnectionPlaces
from pybroker.security.tls_connection import TlsAcceptor, TlsListener
from pybroker.server.connections import on_connect
from pybroker.server.connections.refusals import Refusals
from pybroker.server.connections.session import Session
from pybroker.server.handler import Handler
from pybroker.server.handlers import HANDLERS
from pybroker.server.services import Services

log = logging.getLogger("pybroker.server")

_DRAIN_TIMEOUT_S: Final = 5.0


class BrokerServer:
    def __init__(
        self,
        services: Services,
        handlers: Mapping[int, Handler] = HANDLERS,
        new_session: type[Session] = Session,
    ) -> None:
        self._new_session = new_session
        self._services = services
        self._handlers = handlers
        self._refusals = Refusals()
        self._places = ConnectionPlaces[Session](services.config, log, self._make_room)
        self._servers: list[asyncio.Server] = []
        self._tls_acceptor: TlsAcceptor | None = None
        self._watching: list[asyncio.Task[None]] = []

    @property
    def sessions(self) -> list[Session]:
        return list(self._places)

    async def start(self, where: Endpoint) -> tuple[str, int]:
        """Listens; returns the bound address. Raises OSError if the port is taken."""
        server = await listen(self.accept, where)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        self._services.port = bound[1]
        self._watch()
        return bound[0], bound[1]

    async def start_tls(self, listener: TlsListener) -> None:
        """Listens with TLS, in addition to `start` or alone."""
        handshake_s = self._services.config.handshake_timeout_ms / 1000
        self._tls_acceptor = TlsAcceptor(listener.contexts, self.accept, handshake_s)
        self._servers.append(await listen(self._tls_acceptor, listener.socket))
        self._services.port_tls = listener.socket.getsockname()[1]
        self._watch()

    def _watch(self) -> None:
        if self._watching:
            return
        loop = asyncio.get_running_loop()
        self._watching = [loop.create_task(self._check_keep_alive(), name="keep-alive")]
        authentication = self._services.authentication
        if authentication is not None:
            checking = self._check_logins(authentication.refresh_check_s)
            self._watching.append(loop.create_task(checking, name="logins"))

    def accept(self) -> Session:
        """Creates a session before its transport, for a socket or in this process."""
        return self._new_session(
            self._services, self._handlers, self._admit, self._logged_in, self._forget
        )

    def _admit(self, session: Session, transport: asyncio.Transport, address: str) -> bool:
        """Refusals use Apache Pulsar's sentences."""
        counts, limit = self._services.counts, self._places.admit(session, address)
        if limit is None:
            counts.connections_created += 1
            return True
        counts.refused[limit] += 1
        counts.connections_failed += 1
        of_address = f" on address/{session.peer}" if limit == OF_A_MACHINE else ""
        reason = f"Reached the maximum number of connections{of_address}"
        self._refusals.tell(transport, NotAllowed(reason))
        return False

    def _logged_in(self, session: Session) -> None:
        self._services.counts.connections_logged_in += 1
        self._places.logged_in(session)

    def _make_room(self, connection: Session) -> None:
        connection.close("it had not logged in when its place was needed for another connection")
        self._forget(connection)

    def _forget(self, session: Session) -> None:
        counts, logged_in = self._services.counts, self._places.has_logged_in(session)
        if self._places.forget(session):
            counts.connections_closed += 1
            counts.connections_failed += not logged_in

    async def _check_keep_alive(self) -> None:
        while True:
            await sleep_in_real_time(self._services.config.keep_alive_interval_seconds)
            for session in self._places:
                session.check_alive()

    async def _check_logins(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            now_ms = self._services.clock.now_ms()
            for session in self._places:
                on_connect.check_login(session, now_ms)

    async def stop_listening(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if self._tls_acceptor is not None:
            self._tls_acceptor.close()
        self._refusals.close()
        watching, self._watching = self._watching, []
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)

    async def stop(self, answer_timeout_s: float = 2.0) -> None:
        """Answers pending requests as time allows, and closes every connection."""
        await self.stop_listening()
        sessions = list(self._places)
        if not sessions:
            await self._services.disconnections.close()
            return
        if answer_timeout_s:
            await self._answer(sessions, answer_timeout_s)
        await self._services.disconnections.close()  # the clients reconnect: abort nothing
        for session in sessions:
            session.close("the broker shuts down")
        for session in sessions:
            await session.requests.close()
        ended = asyncio.gather(*(session.ended for session in sessions))
        await asyncio.wait([ended], timeout=_DRAIN_TIMEOUT_S)

    async def _answer(self, sessions: list[Session], timeout_s: float) -> None:
        """Waits for requests, and for publishes to become durable."""
        work = asyncio.gather(
            self._services.budget.unused(), *(session.finish() for session in sessions)
        )
        done, _ = await asyncio.wait([work], timeout=timeout_s)
        if not done:
            log.warning("some requests were still unanswered %g s after stopping began", timeout_s)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
