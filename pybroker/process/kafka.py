"""Builds the listener for Kafka's clients from a broker's parts; imported only if wanted."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.runtime import Clock, Tasks
from pybroker.broker.brokers.ownership import KafkaAddress
from pybroker.kafka.advertised import advertised_urls
from pybroker.kafka.configs.group_configs import GroupConfigs
from pybroker.kafka.coordinator.group_coordinator import GroupCoordinator
from pybroker.kafka.coordinator.limits import CoordinatorLimits
from pybroker.kafka.fetched_bytes import FetchedBytes
from pybroker.kafka.listener import KafkaListener
from pybroker.kafka.names import KafkaNames
from pybroker.kafka.nodes import AloneNode
from pybroker.kafka.producer_ids import ProducerIds
from pybroker.kafka.sasl.logins import Logins
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.shared_nodes import SharedNodes
from pybroker.kafka.topic_changes import ChangesAlone, TopicChanges
from pybroker.kafka.topic_ids import TopicIds
from pybroker.kafka.transactions.for_brokers import answer
from pybroker.kafka.transactions.kafka_transactions import KafkaTransactions
from pybroker.kafka.transactions.remote_producers import RemoteProducers
from pybroker.kafka.transactions.surroundings import TransactionLimits
from pybroker.process.kafka_changes import SharedChanges
from pybroker.process.kafka_end_offsets import RemoteEndOffsets
from pybroker.process.kafka_peers import KafkaPeers
from pybroker.process.kafka_sessions import KafkaSessions
from pybroker.process.kafka_share_offsets import RemoteShareOffsets
from pybroker.process.membership import Membership, Served
from pybroker.server.services import Services


class Parts(Served, Protocol):
    """What Kafka's handlers use of a broker."""

    @property
    def metadata(self) -> MetadataStore: ...


def _certainty(membership: Membership | None) -> Callable[[], bool]:
    return lambda: membership is None or membership.is_certain


def told_address(config: BrokerConfig, url: str, url_tls: str) -> KafkaAddress:
    """What this broker tells of itself, of those kinds that it serves. Raises BadListeners."""
    told = advertised_urls(config.kafka_advertised_listeners)
    return KafkaAddress(url and told.get(False, url), url_tls and told.get(True, url_tls))


def kafka_listener(
    broker: Parts,
    services: Services,
    clock: Clock,
    config: BrokerConfig,
    rng: Random,
    membership: Membership | None,
) -> KafkaListener:
    """`services` are those of the binary protocol, whose limits both share."""
    offsets, limits = broker.kafka_offsets.logs(), CoordinatorLimits.of(config)
    groups = GroupCoordinator(offsets, clock, limits, _certainty(membership))
    producer_ids = ProducerIds(broker.metadata)
    remote_producers = None
    if membership is not None:
        ask = KafkaPeers(membership)
        remote_producers = RemoteProducers(ask, broker.coordinators, clock)
    transactions = KafkaTransactions(
        groups,
        broker.coordinators,
        broker.topics,
        KafkaSessions(services.sessions),
        producer_ids,
        TransactionLimits.of(config),
        remote_producers,
    )
    services.answer_kafka = partial(answer, transactions)
    names = KafkaNames(config.kafka_tenant, config.kafka_namespace)
    changes: TopicChanges = ChangesAlone(broker.topics)
    if membership is not None:
        changes = SharedChanges(broker.topics, membership)
    return KafkaListener(
        KafkaServices(
            topics=broker.topics,
            coordinators=broker.coordinators,
            participants=services.participants,
            ledgers=broker.ledgers,
            metadata=broker.metadata,
            clock=clock,
            rng=rng,
            config=config,
            tasks=Tasks("Kafka's clients"),
            names=names,
            nodes=AloneNode(config) if membership is None else SharedNodes(membership),
            frames=services.frames,
            fetched=FetchedBytes(config.max_pending_delivery_bytes),
            groups=groups,
            transactions=transactions,
            producer_ids=producer_ids,
            logins=Logins(services.authentication, broker.metadata, clock),
            topic_ids=TopicIds(names),
            group_configs=GroupConfigs(broker.metadata),
            changes=changes,
            authorizer=services.authorizer,
            remote_end_offsets=None if membership is None else RemoteEndOffsets(membership),
            remote_share_offsets=None if membership is None else RemoteShareOffsets(membership),
        )
    )
