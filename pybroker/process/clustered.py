"""`pybroker broker`: a broker that shares storage and topics with the others of its cluster.

A standalone `Broker.start` cleans up the whole storage. A member of a cluster is limited to the
bundles that it owns:

- Deletions cut short by a crash are finished when the broker acquires their bundle. Those of what
  several brokers serve are finished by any broker, after a while (`cluster/finishing.py`).
- A coordinator is opened only by the owner of its partition of the assign topic.
- The deletion of a managed ledger is finished when its owner opens that managed ledger.
- Unlisted ledgers are not looked for: they may be new ledgers of another broker.
- Logs of former versions are not migrated: those versions could not write to BookKeeper.
- Boots are counted by compare-and-set, so no two brokers of a cluster get the same number.
"""

import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final
from urllib.parse import urlsplit

from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.listeners import Listeners
from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.base.runtime import Clock, SystemClock, do_nothing
from pybroker.broker.brokers.bundle_release import release_topics
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.brokers.ownership import BrokerAddress, Bundle, KafkaAddress, hash_of
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.namespaces.tenants import partitions_key
from pybroker.broker.topics import Topics
from pybroker.cluster.admin_client import AdminClient
from pybroker.cluster.bad_settings import BadSettings
from pybroker.cluster.balancing import Balancing, BundleSize
from pybroker.cluster.bundle_ownership import BundleOwnership
from pybroker.cluster.bundles import ClusterBundles
from pybroker.cluster.cluster import Cluster
from pybroker.cluster.finishing import Finishing
from pybroker.cluster.foreign_policies import ForeignTopicPolicies
from pybroker.cluster.node_values import Place, bundles_data, equal_boundaries
from pybroker.cluster.others_of_parts import OthersOfParts
from pybroker.cluster.settings import cluster_settings, common_settings, storage_config
from pybroker.cluster.shared_count import share_coordinators
from pybroker.cluster.transactions.broker_client import BadBrokerClient, peer_options
from pybroker.cluster.transactions.formats import FOREIGN, message_count, use_pulsars_formats
from pybroker.cluster.transactions.peers import PeerOptions
from pybroker.cluster.transactions.shared import SharedTransactions
from pybroker.formats.apache.families import in_apaches_formats
from pybroker.logs.control import LogControl
from pybroker.process.app import Broker, standalone
from pybroker.process.kafka_forgetting import Forgetting
from pybroker.process.membership import Membership, Parts
from pybroker.process.ports import StartFailed
from pybroker.wire import pulsar_api_pb2 as pb

log = logging.getLogger("pybroker")
_EVERYWHERE: Final = ("0.0.0.0", "::")


class ClusterMembership:
    """Implements Membership."""

    def __init__(
        self,
        backend: BookKeeperBackend,
        config: BrokerConfig,
        clock: Clock,
        lost: Callable[[str], None],
        peers: PeerOptions,
    ) -> None:
        """`peers`: this broker's login on the other brokers. `lost`: see `Cluster`."""
        self._cluster = Cluster(
            backend.zookeeper,
            backend.caught_up,
            backend.path_of,
            clock,
            config.default_number_of_namespace_bundles,
            config.metadata_store_session_timeout_millis,
            lost,
            peers,
            common_settings(config),
        )
        self._metadata = backend.metadata
        self._clock = clock
        self._peers = peers
        self._config = config
        self._storage_tls = backend.tls
        self._bookies = backend.bookies
        self.transactions: SharedTransactions | None = None
        self.balancing: Balancing | None = None
        self.finishing: Finishing | None = None

    @property
    def ownership(self) -> BundleOwnership:
        return self._cluster.ownership

    @property
    def broker_id(self) -> str:
        return self._cluster.broker_id

    @property
    def is_certain(self) -> bool:
        return self._cluster.is_certain

    @property
    def bundles(self) -> ClusterBundles:
        return self._cluster.bundles

    @property
    def others(self) -> AdminClient:
        return self._cluster.admin

    def brokers(self) -> list[str]:
        return self._cluster.brokers()

    def kafka_addresses(self) -> dict[str, KafkaAddress]:
        places = self._cluster.live.all()
        return {broker_id: place.kafka for broker_id, place in places.items()}

    def id_of(self, address: BrokerAddress) -> str | None:
        return self._cluster.live.id_of(address)

    def bookies(self) -> Sequence[str]:
        return self._bookies()

    async def ask_admin(self, method: str, target: str, body: bytes = b"") -> Reply:
        return await self._cluster.admin.ask_as_a_client(method, target, body)

    async def ask_kafka(
        self, broker: BrokerAddress, command: pb.CommandKafkaTransaction
    ) -> pb.CommandKafkaTransactionResponse:
        assert self.transactions is not None, "the membership is open"
        return await self.transactions.ask_kafka(broker, command)

    async def open(self, broker: Parts) -> None:
        topics = broker.topics
        use_pulsars_formats(broker.coordinators)
        self._cluster.place_by(topics.place_of)
        topics.others_of_parts = OthersOfParts(self._cluster.live, self._cluster.admin)
        self.transactions = SharedTransactions(
            self.ownership,
            broker.topics,
            broker.coordinators,
            broker.participants,
            self._clock,
            self._cluster,
            self._peers,
            broker.kafka_offsets.begun,
        )
        broker.participants = self.transactions.participants
        broker.kafka_offsets.forget_on_others = Forgetting(self, broker.kafka_offsets)
        count_again = self.transactions.count_again
        self._metadata.watch(partitions_key(COORDINATOR_ASSIGN), lambda _: count_again())
        foreign_policies = ForeignTopicPolicies(broker.ledgers.exists)

        def acquired(bundle: Bundle) -> None:
            topics.deletions.finish_of(lambda name: bundle.holds(topics.place_of(name)))
            foreign_policies.look(bundle.namespace)

        self.ownership.on_change(acquired, broker.kafka_offsets.release)
        self.ownership.on_change(do_nothing, partial(release_topics, broker.topics, broker.ledgers))
        self.balancing = self._cluster.balancing(partial(size_of, broker.topics), self._config)
        self.finishing = Finishing(
            broker.topics, self._metadata, self._cluster.live, self._cluster.admin
        )
        await broker.topics.tenants.put_built_in()
        await self._cluster.open()
        if self._config.transaction_coordinator_enabled:
            await share_coordinators(broker.topics.tenants, self._cluster.live, self._config)

    async def join(self, address: BrokerAddress, listeners: Listeners, kafka: KafkaAddress) -> None:
        url = address.http_url or address.http_url_tls or address.broker_url
        broker_id = urlsplit(url or address.broker_url_tls).netloc
        await self._cluster.join(broker_id, Place(address, listeners, kafka))
        if self.transactions is not None:
            self.transactions.start()
        if self.balancing is not None:
            self.balancing.start()
        if self.finishing is not None and (address.http_url or address.http_url_tls):
            self.finishing.start()

    async def leave(self) -> None:
        if self.finishing is not None:
            await self.finishing.close()
        if self.balancing is not None:
            await self.balancing.close()
        if self.transactions is not None:
            await self.transactions.leave()
        await self._cluster.leave()
        await self._end_transactions()

    async def close(self) -> None:
        if self.finishing is not None:
            await self.finishing.close()
        if self.balancing is not None:
            await self.balancing.close()
        await self._end_transactions()
        await self._cluster.close()

    def reload_certificates(self) -> list[bool]:
        return [tls.reload() for tls in (*self._storage_tls, self._peers.tls) if tls is not None]

    async def _end_transactions(self) -> None:
        if self.transactions is not None:
            await self.transactions.close()


def size_of(topics: Topics, bundle: Bundle) -> BundleSize:
    names = [name for name in topics.loaded_names() if bundle.holds(topics.place_of(name))]
    hashes = [hash_of(topics.place_of(name)) for name in names]
    return BundleSize(hashes, sum(map(_sessions, topics.loaded_of(names))))


def _sessions(topic: ServedTopic) -> int:
    consumers = sum(len(each.consumers) for each in topic.subscriptions.values())
    return len(topic.producers.all()) + consumers


async def cluster_broker(
    config: BrokerConfig,
    http: bool,
    shut_down: Callable[[], None],
    logs: LogControl,
    lost: Callable[[str], None],
) -> Broker:
    """Start a broker that serves as a member of its cluster. Raises StartFailed.

    `lost` is called when other brokers may have taken this broker's topics. It must end the
    process.
    """
    clock, rng = SystemClock(), Random()
    config = reachable(config)
    try:
        backend = shared_storage(config, clock, rng)
        peers = peer_options(config)
    except (BadSettings, BadBrokerClient) as error:
        raise StartFailed(str(error)) from error
    membership: Membership = ClusterMembership(backend, config, clock, lost, peers)
    return await standalone(config, backend, http, clock, shut_down, logs, membership=membership)


def shared_storage(config: BrokerConfig, clock: Clock, rng: Random) -> BookKeeperBackend:
    """Raises BadSettings for what BookKeeper's storage cannot do."""
    return BookKeeperBackend(
        cluster_settings(config).servers,
        clock,
        rng,
        in_apaches_formats(
            storage_config(config),
            config.cluster_name,
            bundles_data(equal_boundaries(config.default_number_of_namespace_bundles)),
        ),
        message_count,
        FOREIGN,
    )


def reachable(config: BrokerConfig) -> BrokerConfig:
    """Advertise this machine's name if the broker listens on all interfaces without an advertised
    address: other machines need an address that they can use.
    """
    if config.advertised_address or config.bind_address not in _EVERYWHERE:
        return config
    return replace(config, advertised_address=socket.getfqdn())
