"""The listening sockets: limits on connections, keep-alive, an orderly shutdown.

Connections are limited in total and per address; an IPv6 address counts with its /64. At a limit, a
connection that has not logged in makes room: the oldest of the same address, or of the address with
most such connections. If there is none, the new connection gets the reason and is closed. A session
closes its connection if CONNECT does not arrive in time, and if the client stays silent for two
keep-alive intervals despite a PING.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Final

from pybroker.base.accepting import listen
from pybroker.base.errors import NotAllowed
from pybroker.base.machines import machine_of
from pybroker.base.runtime import Seldom, sleep_in_real_time
from pybroker.security.newcomers import Newcomers
from pybroker.security.tls_connection import TlsDoor, TlsListener
from pybroker.server import on_connect
from pybroker.server.handler import Handler
from pybroker.server.handlers import HANDLERS
from pybroker.server.refusals import Refusals
from pybroker.server.services import Services
from pybroker.server.session import Session

log = logging.getLogger("pybroker.server")

_DRAIN_TIMEOUT_S: Final = 5.0

# Where to listen: host and port, or a socket that is bound already.
Endpoint = tuple[str, int] | socket.socket


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
        self._sessions: dict[Session, str] = {}
        self._per_machine: Counter[str] = Counter()
        self._newcomers = Newcomers[Session]()
        config = services.config
        self._refusals = Refusals()
        self._full = Seldom(
            log,
            "refused a connection: %d are open (brokerMaxConnections)",
            config.broker_max_connections,
        )
        self._full_address = Seldom(
            log,
            "refused a connection: its address has %d open (brokerMaxConnectionsPerIp)",
            config.broker_max_connections_per_ip,
        )
        self._servers: list[asyncio.Server] = []
        self._door: TlsDoor | None = None
        self._watching: list[asyncio.Task[None]] = []

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions)

    async def start(self, where: Endpoint) -> tuple[str, int]:
        """Listens; returns the bound address. Raises OSError if the port is taken."""
        if isinstance(where, socket.socket):
            server = await listen(self.accept, where)
        else:
            server = await asyncio.get_running_loop().create_server(self.accept, *where)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        self._services.port = bound[1]
        self._watch()
        return bound[0], bound[1]

    async def start_tls(self, listener: TlsListener) -> None:
        """Listens with TLS, in addition to `start` or alone."""
        handshake_s = self._services.config.handshake_timeout_ms / 1000
        self._door = TlsDoor(listener.contexts, self.accept, handshake_s)
        self._servers.append(await listen(self._door, listener.socket))
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
        config, machine = self._services.config, machine_of(address)
        if len(self._sessions) >= config.broker_max_connections > 0 and not self._make_room(
            self._newcomers.oldest_where_most_are()
        ):
            self._full.say(address)
            self._refused("brokerMaxConnections")
            self._refusals.tell(transport, NotAllowed("Reached the maximum number of connections"))
            return False
        if self._per_machine[machine] >= config.broker_max_connections_per_ip > 0 and (
            not self._make_room(self._newcomers.oldest_of(address))
        ):
            self._full_address.say(address)
            self._refused("brokerMaxConnectionsPerIp")
            reason = f"Reached the maximum number of connections on address/{session.peer}"
            self._refusals.tell(transport, NotAllowed(reason))
            return False
        self._services.counts.connections_created += 1
        self._sessions[session] = machine
        self._per_machine[machine] += 1
        self._newcomers.came(session, address)
        return True

    def _refused(self, limit: str) -> None:
        self._services.counts.refused[limit] += 1
        self._services.counts.connections_failed += 1

    def _logged_in(self, session: Session) -> None:
        self._services.counts.connections_logged_in += 1
        self._newcomers.went(session)

    def _make_room(self, newcomer: Session | None) -> bool:
        if newcomer is None:
            return False
        newcomer.close("it had not logged in when its place was needed for another connection")
        self._forget(newcomer)
        return True

    def _forget(self, session: Session) -> None:
        counts, machine = self._services.counts, self._sessions.pop(session, None)
        if machine is not None:
            counts.connections_closed += 1
            counts.connections_failed += session in self._newcomers
            self._per_machine[machine] -= 1
            if not self._per_machine[machine]:
                del self._per_machine[machine]
        self._newcomers.went(session)

    async def _check_keep_alive(self) -> None:
        while True:
            await sleep_in_real_time(self._services.config.keep_alive_interval_seconds)
            for session in list(self._sessions):
                session.check_alive()

    async def _check_logins(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            now_ms = self._services.clock.now_ms()
            for session in list(self._sessions):
                on_connect.check_login(session, now_ms)

    async def stop_listening(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if self._door is not None:
            self._door.close()
        self._refusals.close()
        watching, self._watching = self._watching, []
        for task in watching:
            task.cancel()
        if watching:
            await asyncio.wait(watching)

    async def stop(self, answer_timeout_s: float = 2.0) -> None:
        """Answers pending requests as time allows, and closes every connection."""
        await self.stop_listening()
        sessions = list(self._sessions)
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
