"""A connection as the handlers of its commands see it."""

from collections.abc import Coroutine
from typing import Any, Protocol

from pybroker.broker.client_topics import ServedSubscription, ServedTopic
from pybroker.broker.persistent.producers import Producer, ProducerOwner
from pybroker.broker.subscriptions.consumer import Consumer, ConsumerSink
from pybroker.security.identity import Certificate
from pybroker.server.connections.live_login import LiveLogin
from pybroker.server.connections.requests import Requests
from pybroker.server.connections.slots import ConsumerSlot, ProducerSlot
from pybroker.server.connections.watching import Watching
from pybroker.server.services import Services
from pybroker.server.transactions.added_participants import AddedParticipants
from pybroker.server.transactions.begun_transactions import BegunTransactions
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.wire.frames import CommandBody

# The rest of a command's work; later commands on the connection wait for it.
Rest = Coroutine[Any, Any, None]


class Connection(ProducerOwner, ConsumerSink, Protocol):
    """Implemented by `Session`. Used on the event loop only; ids are the client's."""

    services: Services
    requests: Requests
    number: int  # counted from the broker's start
    peer: str  # host:port
    protocol_version: int
    client_version: str
    sees_entry_metadata: bool
    supports_partial_producer: bool
    login: LiveLogin | None  # None: not logged in yet, or no authentication
    producers: dict[int, ProducerSlot]
    consumers: dict[int, ConsumerSlot]
    watchers: dict[int | str, Watching]  # of topic lists by id; of the V5 SDK together
    begun: BegunTransactions
    added: AddedParticipants
    sessions: dict[TransactionalId, TransactionalSession]

    @property
    def closed(self) -> bool: ...
    @property
    def broker_urls(self) -> tuple[str, str]:
        """The URLs without and with TLS; empty if the broker does not listen there."""
        ...

    @property
    def address(self) -> str:
        """The client's host."""
        ...

    @property
    def certificate(self) -> Certificate | None: ...
    @property
    def owner(self) -> str | None:
        """The owner of transactions that this connection begins."""
        ...

    @property
    def principal(self) -> str | None:
        """The principal whose transactions the connection may change; None: any principal's."""
        ...

    def connected(self) -> None:
        """Ends the handshake: other commands are accepted from now on."""
        ...

    def add_producer(self, topic: ServedTopic, producer: Producer) -> None: ...
    def add_consumer(
        self, topic: ServedTopic, subscription: ServedSubscription, consumer: Consumer
    ) -> None: ...
    def forget_producer(self, producer: Producer) -> bool:
        """Returns whether the producer belonged to this connection."""
        ...

    def tell_consumer_closed(self, consumer: Consumer) -> None: ...

    def write(self, data: bytes) -> None:
        """Sends `data` together with everything else of this tick."""
        ...

    def send_command(self, body: CommandBody) -> None:
        """Sends the command with this body."""
        ...

    async def until_writable(self) -> None:
        """Returns when the client reads again or has disconnected."""
        ...

    def write_pong(self) -> None: ...

    def spend_budget(self, size_bytes: int) -> None:
        """Counts published bytes that are not durable; reading stops while there are too many."""
        ...

    def rest(self, slot: ProducerSlot) -> None:
        """Stops reading until `go_on` is called for each resting producer."""
        ...

    def go_on(self, slot: ProducerSlot) -> None: ...

    def close(self, reason: str) -> None:
        """Writes pending data, then closes."""
        ...
