"""A visitor's client: `pybroker.client`, whose connections to this broker are pipes in memory.

So whatever a client can do, a visitor can: partitions, patterns, several topics, transactions,
reconnections. Topics of other brokers are reached by socket, with the visitor's own credentials.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import NotAllowed, TooManyRequests, TransactionNotFound
from pybroker.base.machines import machine_of
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock, Tasks
from pybroker.client.aio import Client
from pybroker.client.connection.auth import Authentication
from pybroker.client.connection.connection import Connection
from pybroker.client.connection.retry import passing
from pybroker.client.transactions.transaction import Transaction
from pybroker.gateway.read_ahead import Ahead, ReadAhead
from pybroker.gateway.visitor import Visitor
from pybroker.security.identity import Credentials, Identity

TIMEOUT_S: Final = 30.0  # of each request to the broker
_HERE: Final = "within.invalid"  # no machine has this name (RFC 2606)


class Pipe(Protocol):
    """A connection within this process."""

    def hold(self) -> None: ...
    def go_on(self) -> None: ...
    def log_in(self, identity: Identity | None) -> None: ...
    def is_closing(self) -> bool: ...


class Budget(Protocol):
    """Of partly received messages, of all connections."""

    def take(self, size_bytes: int, granted: Callable[[], None], machine: str) -> bool: ...
    def give_back(self, size_bytes: int, granted: Callable[[], None], machine: str) -> None: ...


# Connects a client's protocol to a session of this broker, which counts with the connections of the
# address and names the URL for topics of this broker. Raises TooManyRequests, AuthenticationError.
Connect = Callable[[asyncio.Protocol, tuple[str, int], Identity | None, str], Pipe]


class VisitorClient:
    """`client` is used like any other client; `close` it."""

    def __init__(
        self,
        visitor: Visitor,
        connect: Connect,
        ahead: Ahead,
        config: BrokerConfig,
        clock: Clock,
        rng: random.Random,
        coordinators: Callable[[], int],
    ) -> None:
        """`coordinators`: how many there are."""
        self._coordinators = coordinators
        self.visitor = visitor
        self.clock = clock
        self._ahead = ahead
        self._connect = connect
        self._pipes: list[Pipe] = []
        self._sockets: list[Connection] = []
        self._holders = 0  # queues that hold messages back, and `Ahead`
        scheme = "pulsar+ssl" if config.broker_client_tls_enabled else "pulsar"
        self._url = f"{scheme}://{_HERE}:1"
        self.client = Client(
            self._url,
            _as_authentication(visitor.shown),
            TIMEOUT_S,
            tls_trust_certs_file_path=config.broker_client_trust_certs_file_path or None,
            clock=clock,
            rng=rng,
        )
        self.client.connect_by(self._dial, config.max_message_size, _passes)
        self.client.keep_messages_in(self.new_queue)
        self._tasks = Tasks("a visitor's client")
        ahead.add(self)

    @property
    def machine(self) -> str:
        return machine_of(self.visitor.address[0])

    def transaction(self, txn_id: TxnId) -> Transaction:
        """One that was begun elsewhere. Raises TransactionNotFound if no coordinator can have it:
        the client would wait for that coordinator to appear.
        """
        if txn_id.most >= self._coordinators():
            raise TransactionNotFound(f"Transaction {txn_id} does not exist")
        return self.client.attach_transaction(txn_id)

    def new_queue(self) -> ReadAhead:
        return ReadAhead(self, self._ahead)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task that ends with the client."""
        return self._tasks.start(work, name)

    async def _dial(
        self,
        new_connection: Callable[[], Connection],
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
    ) -> Connection:
        if host != _HERE:
            return await self._dial_broker(new_connection, host, port, tls)
        connection = new_connection()
        visitor = self.visitor
        pipe = self._connect(connection, visitor.address, visitor.identity, self._url)
        self._pipes = [each for each in self._pipes if not each.is_closing()] + [pipe]
        if self._holders:
            pipe.hold()
        return connection

    async def _dial_broker(
        self,
        new_connection: Callable[[], Connection],
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
    ) -> Connection:
        if self.visitor.identity is not None and self.visitor.shown is None:
            raise NotAllowed(
                f"This is served by another broker, {host}:{port}, to which this one cannot show "
                "your certificate: connect to that broker"
            )
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(new_connection, host, port, ssl=tls)
        self._sockets = [each for each in self._sockets if not each.closed] + [connection]
        if self._holders:
            connection.pause_reading()
        return connection

    def log_in(self, visitor: Visitor) -> None:
        """The same visitor, with newer credentials."""
        self.visitor = visitor
        for pipe in self._pipes:
            if not pipe.is_closing():
                pipe.log_in(visitor.identity)

    # -- for its receive queues

    def hold(self) -> None:
        self._holders += 1
        if self._holders == 1:
            for pipe in self._pipes:
                pipe.hold()
            for connection in self._sockets:
                connection.pause_reading()

    def go_on(self) -> None:
        self._holders -= 1
        if not self._holders:
            for pipe in self._pipes:
                pipe.go_on()
            for connection in self._sockets:
                connection.resume_reading()

    async def close(self) -> None:
        self._ahead.remove(self)
        await self._tasks.close()
        await self.client.close()


def _passes(error: Exception) -> bool:
    """A limit is answered at once (429), and the visitor decides when to try again."""
    return passing(error) and not isinstance(error, TooManyRequests)


def _as_authentication(shown: Credentials | None) -> Authentication | None:
    return None if shown is None else Authentication(shown.method, lambda: shown.data)
