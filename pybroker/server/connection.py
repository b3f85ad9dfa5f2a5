"""What the handlers of commands see of the connection that a command came on."""

from collections.abc import Coroutine
from typing import Any, Protocol

from pybroker.broker.consumer import Consumer, ConsumerSink
from pybroker.broker.producers import Producer, ProducerOwner
from pybroker.broker.served import ServedSubscription, ServedTopic
from pybroker.security.identity import Certificate
from pybroker.server.begun_transactions import BegunTransactions
from pybroker.server.live_login import LiveLogin
from pybroker.server.owned_transactions import OwnedTransactions
from pybroker.server.requests import Requests
from pybroker.server.services import Services
from pybroker.server.slots import ConsumerSlot, ProducerSlot
from pybroker.server.transactional_session import TransactionalSession
from pybroker.server.watcher import Watcher
from pybroker.transaction.coordinator.transactional_ids import TransactionalId
from pybroker.wire import pulsar_api_pb2 as pb

# What is left of a command's work; what came behind it on its connection waits for it.
Rest = Coroutine[Any, Any, None]


class Connection(ProducerOwner, ConsumerSink, Protocol):
    """A `Session` is one. It belongs to the event loop, and its ids are the client's."""

    services: Services
    requests: Requests
    number: int  # of all connections since the start
    peer: str  # host:port
    protocol_version: int
    client_version: str
    sees_entry_metadata: bool
    supports_partial_producer: bool
    login: LiveLogin | None  # None: not yet, or nobody is asked
    producers: dict[int, ProducerSlot]
    consumers: dict[int, ConsumerSlot]
    watchers: dict[int, Watcher]
    begun: BegunTransactions
    owned: OwnedTransactions
    sessions: dict[TransactionalId, TransactionalSession]

    @property
    def closed(self) -> bool: ...
    @property
    def broker_urls(self) -> tuple[str, str]:
        """Without TLS and with it; empty where the broker does not listen."""
        ...

    @property
    def address(self) -> str:
        """The client's host."""
        ...

    @property
    def certificate(self) -> Certificate | None: ...
    @property
    def owner(self) -> str | None:
        """Of the transactions that this connection begins."""
        ...

    @property
    def principal(self) -> str | None:
        """Whose transactions it may change; None: anybody's."""
        ...

    def connected(self) -> None:
        """The handshake is over: other commands are accepted."""
        ...

    def add_producer(self, topic: ServedTopic, producer: Producer) -> None: ...
    def add_consumer(
        self, topic: ServedTopic, subscription: ServedSubscription, consumer: Consumer
    ) -> None: ...
    def forget_producer(self, producer: Producer) -> bool:
        """Returns whether it was one of this connection's."""
        ...

    def tell_consumer_closed(self, consumer: Consumer) -> None: ...

    def write(self, data: bytes) -> None:
        """Send with everything else of this tick."""
        ...

    def send_command(self, command: pb.BaseCommand) -> None: ...
    async def until_writable(self) -> None:
        """Returns when the client takes what is written, or is gone."""
        ...

    def write_pong(self) -> None: ...

    def spend_budget(self, size_bytes: int) -> None:
        """Count published bytes that are not durable; reading stops while there are too many."""
        ...

    def rest(self, slot: ProducerSlot) -> None:
        """Stop reading until `go_on` was called for each producer that rests."""
        ...

    def go_on(self, slot: ProducerSlot) -> None: ...

    def close(self, reason: str) -> None:
        """Write what is due, then close."""
        ...
