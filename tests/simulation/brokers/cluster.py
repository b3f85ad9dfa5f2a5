"""All machines of a cluster, and an omniscient view of it.

Takes the place of BrokerProcess in the simulation of one broker. ZooKeeper says who owns a bundle.
A broker that has not noticed the end of its session owns nothing.
"""

from collections.abc import Callable
from typing import Any

from checks.history import History
from sim_broker import holding_back
from sim_machines import Machines
from sim_scenario import PARTITIONED, PARTITIONS, Scenario
from sim_world import ClientsWorld

from brokers.member import Member
from brokers.topology import Topology
from brokers.trouble import BEGINS_S
from managed_ledger.ledger_metadata import ledgers_key
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName, TxnId
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.cluster.bundle_ownership import path_of
from pybroker.simulation.faults import Fault
from pybroker.transaction.coordinator.log.transaction_log import log_name


class SimulatedCluster:
    def __init__(
        self,
        world: ClientsWorld,
        history: History,
        scenario: Scenario,
        topology: Topology,
        topics: Callable[[], list[str]],
        serves_http: bool,
    ) -> None:
        self.world = world
        self.history = history
        self.rng = world.stream("cluster")
        self.topology = topology
        self._scenario = scenario
        self._topics = topics
        self.machines = Machines(world, topology.bookies)
        config = scenario.broker_config()
        self.members = [
            Member(world, history, number, config, topology, self._prepare, serves_http)
            for number in range(topology.brokers)
        ]
        urls = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        world.service_url = f"pulsar://{urls}"

    def note(self, what: str) -> None:
        self.history.notes.append(f"{self.world.now:9.4f} {what}")

    # --- life

    def start(self) -> None:
        self.world.sleep(BEGINS_S)
        for member in self.members:
            member.start()

    async def _prepare(self, member: Member) -> None:
        name = TopicName.parse(PARTITIONED)
        if not member.topics.tenants.partitions(name):
            try:
                await member.topics.create_partitioned(name, PARTITIONS)
            except Conflict:
                return  # another broker was first

    @property
    def serving(self) -> bool:
        return all(member.serving for member in self.members if not member.is_cast_away)

    @property
    def topics(self) -> list[TopicName]:
        """The topics of clients and of the coordinators."""
        partitions = range(self._scenario.coordinators)
        assigned = [COORDINATOR_ASSIGN.partition_at(number) for number in partitions]
        return [*map(TopicName.parse, self._topics()), *assigned]

    def some_member(self) -> Member:
        return self.rng.choice(self.members)

    def restart(self, fault: Fault) -> None:
        """Restarts all brokers."""
        for member in self.members:
            if fault.kind == "stop":
                member.stop(fault.down_s)
            else:
                member.end(fault.down_s)

    def crash(self, fault: Fault) -> None:
        """Crashes one broker soon, preferably one with a coordinator."""
        partitions = range(self._scenario.coordinators)
        owners = [self.owner(COORDINATOR_ASSIGN.partition_at(number)) for number in partitions]
        found = [member for member in owners if member is not None] or self.members
        member = self.rng.choice(found)
        self.world.after(0.03 * self.rng.random(), self._crash, member, fault)

    def _crash(self, member: Member, fault: Fault) -> None:
        member.note("is killed at work")
        member.end(fault.down_s)

    def heal(self) -> None:
        """Brokers that are down or stalled recover on their own."""

    # --- omniscient view

    def owner(self, name: TopicName) -> Member | None:
        """None: no broker owns it, or its owner is down."""
        for member in self.members:
            if member.serving and self._owns(member, name):
                return member
        return None

    def _owns(self, member: Member, name: TopicName) -> bool:
        if not member.topics.ownership.owns(name):
            return False
        placed = member.topics.place_of(name)
        bundle = next(each for each in member.owned() if each.holds(placed))
        stored = self.machines.tree.nodes.get(path_of(bundle))
        return stored is not None and stored.owner == member.session_id

    def _loaded(self) -> list[Any]:
        return [
            topic
            for member in self.members
            if member.serving
            for topic in member.topics.loaded()
            if self._owns(member, topic.name)
        ]

    def open_transactions(self) -> list[str]:
        """Includes each coordinator that has a log and that no broker serves, because its
        transactions are unknown. Brokers that are down, or know too little, do not hide one.
        """
        found: list[str] = []
        for number in range(self._scenario.coordinators):
            owner = self.owner(COORDINATOR_ASSIGN.partition_at(number))
            serving = None if owner is None else owner.broker.coordinators.serving(number)
            if serving is not None:
                found += [str(txn.txn_id) for txn in serving.live()]
            elif self._has_begun(number):
                found.append(f"of coordinator {number}")
        return found

    def _has_begun(self, coordinator: int) -> bool:
        """Whether the coordinator has a log, as ZooKeeper knows."""
        key = ledgers_key(log_name(coordinator))
        return ManagedLedgers().path_of(key) in self.machines.tree.nodes

    def open_in_topics(self) -> list[tuple[str, TxnId]]:
        """Open transactions that hold a topic's readers back."""
        return [
            (str(topic.name), txn_id)
            for member in self.members
            if member.serving
            for topic in member.topics.loaded()
            if (held := holding_back(topic)) and self._owns(member, topic.name)
            for txn_id in held
        ]

    def waits_aside(self, topic: str, txn_id: TxnId) -> bool:
        """False: only topics in commit order keep transactions aside."""
        return False

    def unsettled(self) -> list[str]:
        return [
            f"PINNED: {topic.name} is readable up to {topic.max_read_position}, "
            f"not to {topic.ledger.last_confirmed}"
            for topic in self._loaded()
            if topic.max_read_position != topic.ledger.last_confirmed
        ]
