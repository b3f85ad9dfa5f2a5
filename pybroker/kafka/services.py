"""The dependencies of the requests' handlers; filled in by the composition root."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.base.runtime import Clock, Tasks
from pybroker.broker.topics import Topics
from pybroker.kafka.configs.group_configs import GroupConfigs
from pybroker.kafka.coordinator.group_coordinator import GroupCoordinator
from pybroker.kafka.fetched_bytes import FetchedBytes
from pybroker.kafka.names import KafkaNames
from pybroker.kafka.nodes import Nodes
from pybroker.kafka.producer_ids import ProducerIds
from pybroker.kafka.sasl.logins import Logins
from pybroker.kafka.shares.progress import ShareOffsetsElsewhere
from pybroker.kafka.topic_changes import TopicChanges
from pybroker.kafka.topic_ids import TopicIds
from pybroker.kafka.transactions.kafka_transactions import KafkaTransactions
from pybroker.security.authorization import Authorizer
from pybroker.server.connections.frame_budget import FrameBudget
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.participants import Participants

EndOffsets = Callable[[str, Mapping[int, TopicName]], Awaitable[Mapping[int, int]]]


@dataclass(frozen=True, slots=True)
class KafkaServices:
    topics: Topics
    coordinators: Coordinators
    participants: Participants
    ledgers: ManagedLedgerFactory
    metadata: MetadataStore
    clock: Clock
    rng: Random
    config: BrokerConfig
    tasks: Tasks  # closed with the listener
    names: KafkaNames
    nodes: Nodes
    frames: FrameBudget
    fetched: FetchedBytes
    logins: Logins
    groups: GroupCoordinator
    transactions: KafkaTransactions
    producer_ids: ProducerIds
    topic_ids: TopicIds
    changes: TopicChanges
    group_configs: GroupConfigs
    authorizer: Authorizer | None = None  # None: no request needs a permission
    # Where partitions of a topic end that other brokers serve, as far as they answer.
    remote_end_offsets: EndOffsets | None = None
    remote_share_offsets: ShareOffsetsElsewhere | None = None  # None: there are no other brokers
