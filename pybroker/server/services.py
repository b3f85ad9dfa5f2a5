"""The dependencies of a connection's handlers; filled in by the composition root."""

import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.listeners import Listeners
from pybroker.base.runtime import Clock
from pybroker.base.server_counts import ServerCounts
from pybroker.broker.deduplication import Examinations
from pybroker.broker.persistent.publishing import Published
from pybroker.broker.topic_lists.lists import TopicList
from pybroker.broker.topics import Topics
from pybroker.broker.transactions.txn_participants import LocalParticipants
from pybroker.security.authentication import Authentication
from pybroker.security.authorization import Authorizer
from pybroker.security.identity import Identity
from pybroker.server.connections.frame_budget import FrameBudget
from pybroker.server.connections.outbox import Outboxes
from pybroker.server.connections.slots import ProducerSlot
from pybroker.server.publishing.held_runs import HeldRoom
from pybroker.server.publishing.publish_budget import PublishBudget
from pybroker.server.transactions.disconnections import Disconnections
from pybroker.server.transactions.transactional_sessions import TransactionalSessions
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.wire import commands
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import SendRun

if TYPE_CHECKING:
    from pybroker.faults.registry import Faults
    from pybroker.server.scalable.shared import Scalable

AnswerKafka = Callable[[pb.CommandKafkaTransaction], Awaitable[pb.CommandKafkaTransactionResponse]]
_RECEIVE_BYTES: Final = 256 * 1024


def _receive_buffer() -> memoryview:
    return memoryview(bytearray(_RECEIVE_BYTES))


@dataclass(slots=True)
class Services:
    topics: Topics
    coordinators: Coordinators
    clock: Clock
    config: BrokerConfig
    budget: PublishBudget
    frames: FrameBudget
    outboxes: Outboxes
    disconnections: Disconnections
    # Why the storage would refuse a message now; None if it would accept it.
    storage_refusal: Callable[[], str | None] = lambda: None
    authentication: Authentication | None = None  # None: everyone may do everything
    authorizer: Authorizer | None = None  # None: no command needs a permission
    listeners: Listeners = field(default_factory=Listeners)
    port: int | None = None  # the port without TLS, once it listens
    port_tls: int | None = None
    # The fault points, if the broker has any; receipts pass some of them.
    faults: "Faults | None" = None
    # Answers another broker about a producer of Kafka's; None: there are none here.
    answer_kafka: "AnswerKafka | None" = None
    receipting: Callable[[Any, ProducerSlot, SendRun, Published], Published] | None = None
    boot: int = 0  # how often a broker has started on this storage before
    connection_numbers: Iterator[int] = field(default_factory=itertools.count)
    name_numbers: Iterator[int] = field(default_factory=itertools.count)
    held_runs: HeldRoom = field(default_factory=HeldRoom)
    examinations: Examinations = field(default_factory=Examinations)
    counts: ServerCounts = field(default_factory=ServerCounts)
    _encoded_topics: dict[tuple[str, int], tuple[TopicList, bytes]] = field(default_factory=dict)
    # The buffer that sockets are read into; a new one per read would be mapped and unmapped.
    receive_buffer: memoryview = field(default_factory=_receive_buffer)
    participants: LocalParticipants = field(init=False)
    sessions: TransactionalSessions = field(init=False)
    _scalable: "Scalable | None" = None

    def __post_init__(self) -> None:
        self.participants = LocalParticipants(self.topics)
        self.sessions = TransactionalSessions(self.coordinators)

    async def close(self) -> None:
        await self.sessions.close()
        if self._scalable is not None:
            await self._scalable.close()

    @property
    def scalable(self) -> "Scalable":
        """For clients of the V5 SDK; not loaded before the first of them."""
        if self._scalable is None:
            from pybroker.server.scalable.shared import Scalable

            self._scalable = Scalable(self.topics, self.clock, self.config)
        return self._scalable

    def encoded_topics(self, namespace: str, mode: int, topics: TopicList) -> bytes:
        """The answer to GET_TOPICS_OF_NAMESPACE, encoded once for each list."""
        known = self._encoded_topics.get((namespace, mode))
        if known is None or known[0] is not topics:
            encoded = commands.encode_topics(topics.names, topics.hash, changed=True)
            known = self._encoded_topics[namespace, mode] = topics, encoded
        return known[1]

    @property
    def authorizes(self) -> bool:
        """Whether some commands need a permission; otherwise everyone may do everything."""
        return self.authentication is not None and self.config.authorization_enabled

    def is_super_user(self, identity: Identity) -> bool:
        return all(role in self.config.super_user_roles for role in identity.roles)

    def new_producer_name(self) -> str:
        """Unique during the life of the storage, because deduplication goes by names; short,
        because each message contains it.
        """
        return f"{self.config.cluster_name}-{self.boot}-{next(self.name_numbers)}"
