"""The listening sockets for Kafka's clients: limits on connections, silent ones, an orderly end.

brokerMaxConnections and brokerMaxConnectionsPerIp apply here as they do to Pulsar's clients, each
protocol with a count of its own: see `security/connection_places.py`. A connection has logged in
here when it has sent a proper request, and credentials if there are to be any.
"""

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Final

from pybroker.base.accepting import Endpoint, listen
from pybroker.base.runtime import sleep_in_real_time
from pybroker.kafka.connection import Connection
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Session
from pybroker.security.connection_places import ConnectionPlaces
from pybroker.security.tls_connection import TlsAcceptor, TlsListener

if TYPE_CHECKING:
    from pybroker.kafka.for_admin import KafkaForAdmin

log = logging.getLogger("pybroker.kafka")

# A little more than clients keep a connection that they do not use (connections.max.idle.ms).
IDLE_S: Final = 600.0
_ANSWER_TIMEOUT_S: Final = 2.0
_DRAIN_TIMEOUT_S: Final = 5.0


class KafkaListener:
    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._places = ConnectionPlaces[Connection](services.config, log, self._make_room)
        self._numbers = itertools.count()
        self._servers: list[asyncio.Server] = []
        self._acceptor: TlsAcceptor | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def services(self) -> KafkaServices:
        return self._services

    @property
    def for_admin(self) -> "KafkaForAdmin":
        from pybroker.kafka.for_admin import KafkaForAdmin

        return KafkaForAdmin(self._services)

    async def start(
        self, plain: Endpoint | None, tls: TlsListener | None = None
    ) -> tuple[str, int] | None:
        """Listens; returns the bound address of `plain`. Raises OSError if its port is taken."""
        bound = None if plain is None else await self._listen(plain)
        if tls is not None:
            handshake_s = self._services.config.handshake_timeout_ms / 1000
            self._acceptor = TlsAcceptor(tls.contexts, self.accept, handshake_s)
            self._servers.append(await listen(self._acceptor, tls.socket))
        checking = self._check_connections()
        self._checking = asyncio.get_running_loop().create_task(checking, name="kafka keep-alive")
        return bound

    async def _listen(self, where: Endpoint) -> tuple[str, int]:
        server = await listen(self.accept, where)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        return host, port

    def accept(self) -> Connection:
        """Creates a connection before its transport."""
        session, places = Session(next(self._numbers)), self._places
        return Connection(self._services, session, self._admit, places.logged_in, places.forget)

    def _admit(self, connection: Connection) -> bool:
        return self._places.admit(connection, connection.session.address) is None

    def _make_room(self, connection: Connection) -> None:
        connection.close("it had sent no request when its place was needed for another connection")
        self._places.forget(connection)

    async def _check_connections(self) -> None:
        while True:
            await sleep_in_real_time(self._services.config.keep_alive_interval_seconds)
            for connection in self._places:
                connection.check_alive(IDLE_S)

    async def stop_listening(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
            self._checking = None

    async def stop(self, answer_timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        """Answers what was accepted as time allows, and closes every connection."""
        await self.stop_listening()
        self._services.groups.stop()  # who waits for other members goes away now
        connections = list(self._places)
        if connections and answer_timeout_s:
            answers = [asyncio.ensure_future(each.finish()) for each in connections]
            _, late = await asyncio.wait(answers, timeout=answer_timeout_s)
            for each in late:
                each.cancel()
        for connection in connections:
            connection.close("the broker shuts down")
        await self._services.tasks.close()
        await self._services.groups.close()
        if connections:
            await asyncio.wait([each.ended for each in connections], timeout=_DRAIN_TIMEOUT_S)
