"""Everything that the admin routes use; the composition root assembles it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.listeners import Listeners
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock
from pybroker.base.server_counts import ServerCounts
from pybroker.broker.brokers.clusters import Clusters
from pybroker.broker.brokers.other_brokers import Bundles, OtherBrokers
from pybroker.broker.dynamic_configuration import DynamicConfiguration
from pybroker.broker.health import Health
from pybroker.broker.local_messages import LocalBatch, LocalSender
from pybroker.broker.namespaces.permissions import Permissions
from pybroker.broker.namespaces.records import Records
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.topics import Topics
from pybroker.logs.control import LogControl
from pybroker.security.authentication import Authentication
from pybroker.security.authorization import Authorizer
from pybroker.security.identity import Identity
from pybroker.transaction.coordinator.coordinators import Coordinators

if TYPE_CHECKING:
    from pybroker.faults.registry import Faults
    from pybroker.gateway.gateway import Gateway

# Publishes like the producers of a connection. When this returns, each batch has its outcomes.
Publish = Callable[
    [Identity | None, LocalSender, Sequence[LocalBatch], StoredSchema | None], Awaitable[None]
]


async def _at_once() -> None:
    """The default of `permissions_applied`: nothing needs to be notified."""


async def _none_forgotten(topic: str, partition: int | None) -> list[int]:
    """The default of `forget_kafka_offsets`: there are no groups."""
    return []


class KafkaGroups(Protocol):
    """The groups of Kafka's clients; all methods raise PulsarError."""

    async def groups(self) -> list[dict[str, Any]]: ...
    async def group(self, group_id: str) -> dict[str, Any]: ...
    async def end_offsets(self, topic: str) -> list[dict[str, int]]: ...
    async def share_offsets(self, group_id: str, topic: str) -> list[dict[str, Any]]: ...
    async def move_share_offsets(
        self, group_id: str, topic: str, offsets: Mapping[int, int], only_here: bool
    ) -> list[dict[str, Any]]:
        """`only_here`: on the partitions of this broker, for one that knows that the group has no
        members.
        """
        ...

    async def delete_share_offsets(
        self, group_id: str, topic: str, only_here: bool
    ) -> list[dict[str, Any]]: ...

    @property
    def members_bytes(self) -> int:
        """What members of groups take in memory."""
        ...

    def measured(self) -> AsyncIterator[dict[str, Any]]:
        """The groups that this broker coordinates and that are in use: group, kind, members, and
        the lag of loaded partitions by the full names of their topics.
        """
        ...

    async def commit_offsets(
        self,
        identity: Identity | None,
        txn_id: TxnId,
        group_id: str,
        member: tuple[str, str | None, int],
        offsets: Sequence[Mapping[str, Any]],
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Connected:
    """A client's connection to a binary port."""

    number: int  # counted from the broker's start
    address: str  # host:port
    role: str | None  # None: no authentication
    client_version: str
    protocol_version: int
    producers: int
    consumers: int


@dataclass(frozen=True, slots=True)
class AdminServices:
    topics: Topics
    permissions: Permissions
    coordinators: Coordinators
    clock: Clock
    config: BrokerConfig  # as given at the start
    dynamic: DynamicConfiguration
    metadata: MetadataStore
    ledgers: ManagedLedgerFactory
    clusters: Clusters
    service_url: str  # pulsar://host:port, as clients reach it
    admin_url: str  # http://host:port
    connections: Callable[[], int]  # number of connected clients
    publish: Publish
    gateway: Callable[[], Awaitable["Gateway"]]  # imported at the first call
    health: Health
    connected: Callable[[], Iterable[Connected]] = tuple  # connected clients, oldest first
    listeners: Listeners = field(default_factory=Listeners)
    service_url_tls: str = ""  # pulsar+ssl://host:port, if there is one
    admin_url_tls: str = ""  # https://host:port
    counts: ServerCounts = field(default_factory=ServerCounts)  # of the binary protocol
    throttled_connections: Callable[[], int] = lambda: 0
    undelivered_bytes: Callable[[], int] = lambda: 0  # bytes waiting to be sent
    # The longest block of the event loop since the last call, in seconds.
    loop_lag_s: Callable[[], float] = lambda: 0.0
    live_loop_lag_s: Callable[[], float] = lambda: 0.0  # the same, for frequent readers
    authentication: Authentication | None = None  # None: no authentication
    authorizer: Authorizer | None = None  # None: everything is permitted
    permissions_applied: Callable[[], Awaitable[None]] = _at_once
    # Stops the broker's process gracefully; None if the broker runs within another program.
    shut_down: Callable[[], None] | None = None
    kafka: Callable[[], KafkaGroups | None] = lambda: None  # None: Kafka's clients are not served
    # Forgets what groups have committed of a topic, or of a partition; see LazyOffsets.forget_here.
    forget_kafka_offsets: Callable[[str, int | None], Awaitable[list[int]]] = _none_forgotten
    faults: "Faults | None" = None  # in test mode, which has no authentication
    logs: LogControl | None = None  # None: the program that embeds the broker controls logging

    # In a cluster: the ids of all brokers, the other brokers, all bundles. None without a cluster.
    members: Callable[[], list[str]] | None = None
    brokers: OtherBrokers | None = None
    bundles: Bundles | None = None
    bookies: Callable[[], Sequence[str]] = tuple  # the ids of those that accept writes

    @property
    def resource_groups(self) -> Records:
        return Records(self.metadata, "/resource-groups/", "Resource group")

    @property
    def broker_id(self) -> str:
        """host:port of this broker's admin API, which Apache Pulsar uses as a broker's name."""
        return urlsplit(self.admin_url or self.admin_url_tls).netloc
