"""Whole brokers on simulated bookies and a simulated ZooKeeper, for transactions over several
brokers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, cast

from credentials import token
from sim_ledger import LIMITS, SESSION_MS, LedgerLife
from sim_zookeeper import ADDRESS

from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.client.aio import Client, Consumer, Transaction
from pybroker.client.connection.auth import AuthenticationToken
from pybroker.client.errors import Timeout
from pybroker.client.options import InitialPosition
from pybroker.cluster.bundle_ownership import BundleOwnership
from pybroker.cluster.node_values import bundles_data, equal_boundaries
from pybroker.cluster.transactions.broker_client import peer_options
from pybroker.cluster.transactions.formats import FOREIGN, message_count
from pybroker.cluster.transactions.shared import SharedTransactions
from pybroker.formats.apache.families import in_apaches_formats
from pybroker.process.app import Broker
from pybroker.process.clustered import ClusterMembership
from pybroker.simulation.node import Node
from pybroker.simulation.world import SimulatedClock
from pybroker.transaction.coordinator.coordinators import Coordinators

COORDINATOR: Final = COORDINATOR_ASSIGN.partition_at(0)
CONFIG: Final = replace(BrokerConfig(), transaction_coordinators=1)


class TxnBroker:
    """A broker in its own process; `crash` is kill -9."""

    def __init__(
        self,
        life: LedgerLife,
        name: str,
        port: int,
        config: BrokerConfig,
        http_port: int,
        quorums: Quorums | None,
        kafka_port: int = 0,
    ) -> None:
        self.name = name
        self._quorums = quorums
        self._config = config
        self.node: Node = life.node(name)
        self.url, self._port = f"pulsar://127.0.0.1:{port}", port
        self._http_port = http_port  # 0: no HTTP
        self.kafka_port = kafka_port  # 0: it does not serve Kafka's clients
        self._life = life
        life.world.call(self.node, self._start())

    async def _start(self) -> None:
        life = self._life
        rng, clock = life.world.stream(self.node.name), SimulatedClock(life.world)
        quorums = self._quorums or Quorums(*((2,) if len(life.disks) > 1 else (1,)) * 3)
        cluster = ClusterConfig(session_timeout_ms=SESSION_MS, quorums=quorums, limits=LIMITS)
        bundles = bundles_data(equal_boundaries(self._config.default_number_of_namespace_bundles))
        cluster = in_apaches_formats(cluster, self._config.cluster_name, bundles)
        backend = BookKeeperBackend(ADDRESS, clock, rng, cluster, message_count, FOREIGN)
        config = replace(self._config, metadata_store_session_timeout_millis=SESSION_MS)
        self.membership = ClusterMembership(
            backend, config, clock, self._lost, peer_options(config)
        )
        self.broker = Broker(config, backend, clock, rng, membership=self.membership)
        http = ("127.0.0.1", self._http_port) if self._http_port else None
        kafka = ("127.0.0.1", self.kafka_port) if self.kafka_port else None
        await self.broker.start(("127.0.0.1", self._port), http, kafka=kafka)

    def _lost(self, reason: str) -> None:
        self.node.crash()

    @property
    def ownership(self) -> BundleOwnership:
        return self.membership.ownership

    @property
    def transactions(self) -> SharedTransactions:
        assert self.membership.transactions is not None
        return self.membership.transactions

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self._http_port}"

    @property
    def coordinators(self) -> Coordinators:
        return self.broker.coordinators

    def crash(self) -> None:
        self.node.crash()


class TxnCluster:
    """Brokers, and a client's process. Topics have the name of the broker that serves them."""

    def __init__(
        self,
        seed: int,
        serves_http: bool = False,
        quorums: Quorums | None = None,
        **settings: Any,
    ) -> None:
        self._serves_http = serves_http
        self._quorums = quorums
        self.config = replace(CONFIG, **settings)
        self.life = LedgerLife(seed)
        self.world = self.life.world
        self.world.sleep(5.0)  # the bookies register
        self.client = self.life.node("client")
        self._ports = iter(range(6650, 6700))
        self.brokers: list[TxnBroker] = []
        self._clients: dict[tuple[str, str], Client] = {}

    def close(self) -> None:
        self.world.close()

    def start(self, name: str, serves_kafka: bool = False) -> TxnBroker:
        port = next(self._ports)
        http_port = port + 1000 if self._serves_http else 0
        kafka_port = port + 2000 if serves_kafka else 0
        broker = TxnBroker(self.life, name, port, self.config, http_port, self._quorums, kafka_port)
        self.brokers.append(broker)
        return broker

    def crash(self, broker: TxnBroker) -> None:
        self.brokers.remove(broker)
        broker.crash()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` in the client's process."""
        return self.world.call(self.client, work)

    def until(self, fact: Callable[[], bool]) -> None:
        assert self.world.run(fact, 120)

    # ownership

    def take(self, broker: TxnBroker, name: TopicName) -> None:
        """Let the broker take the topic's bundle as soon as no other broker has it."""
        self.world.call(broker.node, self._taken(broker, name))

    async def _taken(self, broker: TxnBroker, name: TopicName) -> None:
        for _ in range(100):
            if await broker.ownership.lookup(name, True) is None:
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"another broker keeps {name}")

    def topic_of(self, broker: TxnBroker) -> str:
        """A new topic in a bundle that this broker serves."""
        for number in range(1000):
            name = TopicName.parse(f"{broker.name}-{number}")
            found = self.world.call(broker.node, broker.ownership.lookup(name, True))
            if found is None and broker.ownership.owns(name):
                return str(name)
        raise AssertionError("the other broker has all bundles")

    def serve_coordinator(self, broker: TxnBroker) -> None:
        self.take(broker, COORDINATOR)

    # clients

    def client_at(self, broker: TxnBroker, role: str = "") -> Client:
        found = self._clients.get((broker.url, role))
        if found is None:
            rng = self.world.stream(f"client {role} of {broker.name}")
            login = AuthenticationToken(token(role)) if role else None
            clock = SimulatedClock(self.world)
            found = Client(broker.url, authentication=login, clock=clock, rng=rng)
            self._clients[broker.url, role] = found
        return found

    async def begin(self, coordinator: TxnBroker, timeout_ms: int = 60_000) -> Transaction:
        return await self.client_at(coordinator).new_transaction(timeout_ms)

    async def send(
        self, broker: TxnBroker, topic: str, payload: bytes, txn: Transaction | None = None
    ) -> None:
        producer = await self.client_at(broker).create_producer(topic)
        await producer.send(payload, txn=txn)
        await producer.close()

    async def read(self, broker: TxnBroker, topic: str, subscription: str = "reads") -> list[bytes]:
        """The messages that a consumer receives until no more come; none is acknowledged."""
        consumer = await self.consumer(broker, topic, subscription)
        found = []
        while True:
            try:
                found.append((await consumer.receive(timeout_millis=3000)).data())
            except Timeout:
                await consumer.close()
                return found

    async def consumer(self, broker: TxnBroker, topic: str, subscription: str) -> Consumer:
        return await self.client_at(broker).subscribe(
            topic, subscription, initial_position=InitialPosition.Earliest
        )


def hears_when_asked(broker: TxnBroker) -> None:
    """The broker learns nothing from others until it must catch up."""
    metadata = cast(Any, broker.broker._backend)._metadata
    request, caught_up = metadata._refresh.request, metadata.caught_up
    metadata._refresh.request = lambda: None

    async def catch_up() -> None:
        metadata._refresh.request = request
        await caught_up()
        metadata._refresh.request = lambda: None

    metadata.caught_up = catch_up
