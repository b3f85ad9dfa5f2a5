"""What the handlers of a connection work with; the composition root fills it in."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pybroker.base.config import BrokerConfig
from pybroker.base.listeners import Listeners
from pybroker.base.runtime import Clock
from pybroker.broker.topic_lists.lists import TopicList
from pybroker.broker.topics import Topics
from pybroker.security.authentication import Authentication
from pybroker.security.identity import Identity
from pybroker.server.frame_budget import FrameBudget
from pybroker.server.held_runs import HeldRoom
from pybroker.server.outbox import Outboxes
from pybroker.server.owned_transactions import Disconnections
from pybroker.server.publish_budget import PublishBudget
from pybroker.server.transactional_sessions import TransactionalSessions
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.wire import commands

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
    # Why the storage would refuse a message now; None if it would take it.
    storage_refusal: Callable[[], str | None] = lambda: None
    authentication: Authentication | None = None  # None: everybody may do everything
    listeners: Listeners = field(default_factory=Listeners)
    port: int | None = None  # once it listens; of clients without TLS
    port_tls: int | None = None
    boot: int = 0  # of this storage: how often a broker has started on it before
    connection_numbers: Iterator[int] = field(default_factory=itertools.count)
    name_numbers: Iterator[int] = field(default_factory=itertools.count)
    held_runs: HeldRoom = field(default_factory=HeldRoom)
    _encoded_topics: dict[tuple[str, int], tuple[TopicList, bytes]] = field(default_factory=dict)
    # What sockets are read into; a fresh buffer for each read would be mapped and unmapped.
    receive_buffer: memoryview = field(default_factory=_receive_buffer)
    sessions: TransactionalSessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = TransactionalSessions(self.coordinators)

    def encoded_topics(self, namespace: str, mode: int, topics: TopicList) -> bytes:
        """The answer to GET_TOPICS_OF_NAMESPACE, encoded once for each list."""
        known = self._encoded_topics.get((namespace, mode))
        if known is None or known[0] is not topics:
            encoded = commands.encode_topics(topics.names, topics.hash, changed=True)
            known = self._encoded_topics[namespace, mode] = topics, encoded
        return known[1]

    def is_super_user(self, identity: Identity) -> bool:
        return all(role in self.config.super_user_roles for role in identity.roles)

    def new_producer_name(self) -> str:
        """Given once in the life of the storage, for deduplication goes by names; and short, for it
        travels with each message.
        """
        return f"{self.config.cluster_name}-{self.boot}-{next(self.name_numbers)}"
