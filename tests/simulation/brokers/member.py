"""A broker of the cluster: a process on its own machine that ends and is started again."""

from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

from checks.history import History
from sim_zookeeper import ADDRESS

from brokers.topology import LIMITS, SESSION_MS, Topology
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.base.runtime import Clock
from pybroker.broker.topics import Topics
from pybroker.cluster.node_values import bundles_data, equal_boundaries
from pybroker.cluster.transactions.formats import FOREIGN, message_count
from pybroker.cluster.transactions.peers import PeerOptions
from pybroker.formats.apache.families import in_apaches_formats
from pybroker.process.app import Broker
from pybroker.process.clustered import ClusterMembership
from pybroker.simulation.broker import PORT
from pybroker.simulation.faults import Fault
from pybroker.simulation.node import Node, SimulatedCrash
from pybroker.simulation.world import SimulatedClock, World

START_AGAIN_S = 0.5  # like a service manager
HTTP = 1000  # offset of the HTTP port


def storage(
    clock: Clock, rng: Random, topology: Topology, config: BrokerConfig
) -> BookKeeperBackend:
    """In Apache Pulsar's formats, like a real broker's."""
    cluster = ClusterConfig(session_timeout_ms=SESSION_MS, quorums=topology.quorums, limits=LIMITS)
    bundles = bundles_data(equal_boundaries(config.default_number_of_namespace_bundles))
    cluster = in_apaches_formats(cluster, config.cluster_name, bundles)
    return BookKeeperBackend(ADDRESS, clock, rng, cluster, message_count, FOREIGN)


class Member:
    """`name` is the machine's. The number of the process on it counts up."""

    def __init__(
        self,
        world: World,
        history: History,
        number: int,
        config: BrokerConfig,
        topology: Topology,
        prepare: Callable[["Member"], Any],
        serves_http: bool,
    ) -> None:
        self.world = world
        self.history = history
        self.name = f"broker-{number}"
        self.port = PORT + number
        self.incarnation = 0
        self.node: Node | None = None
        self.broker: Broker | None = None
        self.serving = False
        self.spared = False  # no more faults
        self.is_resting = False  # it is not to be started
        self.is_cast_away = False  # nobody waits for it any more
        self.clock_ahead_ms = 0  # its wall clock
        self._config = config
        self._topology = topology
        self._prepare = prepare
        self._serves_http = serves_http

    def note(self, what: str) -> None:
        line = f"{self.world.now:9.4f} {self.name}.{self.incarnation} {what}"
        self.history.notes.append(line)

    # --- life

    def start(self) -> None:
        if self.is_resting or (self.node is not None and not self.node.dead):
            return
        self.incarnation += 1
        self.node = self.world.node(f"{self.name}.{self.incarnation}")
        self.node.start(self._until_started())

    async def _until_started(self) -> None:
        """A process that fails to start ends, and is started again."""
        try:
            await self._run()
        except (ManagedLedgerError, PulsarError, OSError) as error:
            self.note(f"does not start: {error!r}")
            self.end(START_AGAIN_S)

    async def _run(self) -> None:
        node = self.node
        clock = SimulatedClock(self.world, self.clock_ahead_ms)
        rng = self.world.stream(node.name)
        self.backend = storage(clock, rng, self._topology, self._config)
        self.membership = ClusterMembership(
            self.backend, self._config, clock, self._lost, PeerOptions()
        )
        self.broker = Broker(self._config, self.backend, clock, rng, membership=self.membership)
        http = ("127.0.0.1", self.port + HTTP) if self._serves_http else None
        await self.broker.start(("127.0.0.1", self.port), http)
        await self._prepare(self)
        self.serving = True
        self.note("serves")

    def _lost(self, why: str) -> NoReturn:
        """Exits, like the command with code 71."""
        self.note(f"exits: {why}")
        self.history.counts["sessions lost"] += 1
        self.end(START_AGAIN_S)
        raise SimulatedCrash

    @property
    def topics(self) -> Topics:
        assert self.broker is not None
        return self.broker.topics

    # --- faults

    def end(self, down_s: float, silently: bool = False) -> None:
        """kill -9, or a power cut if `silently`; the broker is started again after `down_s`."""
        if self.node is None or self.node.dead:
            return
        self.serving = False
        self.node.crash(silently)
        self.world.after(down_s, self.start)

    def crash(self, fault: Fault) -> None:
        """Soon: in the middle of the work that begins now."""
        self.note("is killed at work")
        self.world.after(0.004 * fault.disk_operation, self.end, fault.down_s, fault.power_cut)

    def stop(self, down_s: float) -> None:
        """Stops like after SIGTERM."""
        if self.serving:
            self.serving = False
            self.node.start(self._stop(self.node, down_s), "stop")

    async def _stop(self, node: Node, down_s: float) -> None:
        await self.broker.stop()
        self.note("stopped")
        self.world.after(down_s, self._restart, node)

    def _restart(self, stopped: Node) -> None:
        if not stopped.dead:  # otherwise it crashed meanwhile, and that crash restarts it
            stopped.crash()
            self.start()

    def stall(self, seconds: float) -> None:
        """The process freezes for a while, then continues."""
        if self.node is not None and not self.node.dead:
            self.node.busy_until = self.world.now + seconds

    @property
    def is_stalled(self) -> bool:
        return self.node is not None and self.node.busy_until > self.world.now

    # --- bundles

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port + HTTP}"

    @property
    def broker_id(self) -> str:
        return self.membership.broker_id

    @property
    def session_id(self) -> int:
        return self.backend.zookeeper.session_id

    def owned(self) -> list[Any]:
        return self.broker.topics.ownership.owned() if self.serving else []

    def release(self, bundle: Any, destination: str = "") -> None:
        released = self.topics.ownership.release(bundle, destination)
        self.node.create_task(self._tried(released, "release"))

    def look_up(self, bundle: Any, authoritative: bool) -> None:
        """Looks the bundle up like a client that another broker may have redirected here."""
        found = self.topics.ownership.lookup_bundle(bundle, authoritative)
        self.node.create_task(self._tried(found, "look up"))

    def divide(self, bundle: Any, at: int) -> None:
        self.node.create_task(self._tried(self.topics.ownership.split(bundle, at), "divide"))

    def balance(self) -> None:
        self.node.create_task(self._tried(self.membership.balancing.balance(), "balance"))

    def take(self, topic: str) -> None:
        """Looks the topic up like a client that was redirected here."""
        found = self.topics.ownership.lookup(TopicName.parse(topic), True)
        self.node.create_task(self._tried(found, "take"))

    async def _tried(self, work: Any, what: str) -> None:
        try:
            await work
        except (PulsarError, ManagedLedgerError) as error:
            self.note(f"{what}: {error!r}")
