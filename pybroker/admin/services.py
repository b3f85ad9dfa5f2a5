"""What the admin routes work with; the composition root fills it in."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.config import BrokerConfig
from pybroker.base.listeners import Listeners
from pybroker.base.runtime import Clock
from pybroker.broker.clusters import Clusters
from pybroker.broker.dynamic_configuration import DynamicConfiguration
from pybroker.broker.health import Health
from pybroker.broker.local_messages import LocalBatch, LocalSender
from pybroker.broker.permissions import Permissions
from pybroker.broker.records import Records
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.broker.topics import Topics
from pybroker.logs.control import LogControl
from pybroker.security.authentication import Authentication
from pybroker.security.authorization import Authorizer
from pybroker.security.identity import Identity
from pybroker.transaction.coordinator.coordinators import Coordinators

# Publishes as any connection's producers do; each batch has its outcomes when it returns.
Publish = Callable[
    [Identity | None, LocalSender, Sequence[LocalBatch], StoredSchema | None], Awaitable[None]
]


async def _at_once() -> None:
    """Nobody has to be looked at."""


@dataclass(frozen=True, slots=True)
class AdminServices:
    topics: Topics
    permissions: Permissions
    coordinators: Coordinators
    clock: Clock
    config: BrokerConfig  # as it was given at the start
    dynamic: DynamicConfiguration
    metadata: MetadataStore
    ledgers: ManagedLedgerFactory
    clusters: Clusters
    service_url: str  # pulsar://host:port, as clients reach it
    admin_url: str  # http://host:port
    connections: Callable[[], int]  # how many clients are connected
    publish: Publish
    health: Health
    listeners: Listeners = field(default_factory=Listeners)
    service_url_tls: str = ""  # pulsar+ssl://host:port, if there is one
    admin_url_tls: str = ""  # https://host:port
    # The longest that the event loop was held up, in seconds, since this was last asked.
    loop_lag_s: Callable[[], float] = lambda: 0.0
    authentication: Authentication | None = None  # None: nobody is asked who it is
    authorizer: Authorizer | None = None  # None: everybody may do everything
    permissions_applied: Callable[[], Awaitable[None]] = _at_once
    # Ends the broker's process in order; None where it runs within somebody else's.
    shut_down: Callable[[], None] | None = None
    logs: LogControl | None = None  # None: somebody else's process logs as it likes

    @property
    def resource_groups(self) -> Records:
        return Records(self.metadata, "/resource-groups/", "Resource group")

    @property
    def broker_id(self) -> str:
        """host:port of this broker's admin API, which is what Apache Pulsar calls a broker by."""
        return urlsplit(self.admin_url or self.admin_url_tls).netloc
