"""The broker process of a simulation: the whole product on a simulated disk, through crashes."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from checks.history import History
from clients.plain import PORT
from sim_scenario import PARTITIONED, PARTITIONS, Fault, Scenario
from world.disk import SimulatedDisk
from world.loop import SimulatedClock, World
from world.node import Node

from managed_ledger.errors import ManagedLedgerError, StorageFailed, StorageFull
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.tenants import Conflict
from pybroker.broker.topics import Topics
from pybroker.process.app import Broker
from pybroker.transaction.coordinator.transaction_log import log_name
from pybroker.wire.message_metadata import parse_metadata


class BrokerProcess:
    """`disk` and `clock` outlive the process, as a machine does."""

    def __init__(self, world: World, history: History, scenario: Scenario) -> None:
        self.world = world
        self.history = history
        self.scenario = scenario
        self.disk = SimulatedDisk(world)
        self.clock = SimulatedClock(world)
        self.incarnation = 0
        self.node: Node | None = None
        self.broker: Broker | None = None
        self.serving = False
        self.new_backend: Callable[..., EmbeddedBackend] = EmbeddedBackend
        self.before_start: list[Callable[[], None]] = []  # called while it is down
        self.on_serving: list[Callable[[], None]] = []  # called at each start
        self._faults_end = False
        self.disk_had_faults = False
        self._sync_fault: Fault | None = None

    def start(self) -> None:
        for prepare in self.before_start:
            prepare()
        self.incarnation += 1
        self.node = self.world.node(f"broker.{self.incarnation}")
        self.node.start(self._unless_disk_fails(self._run()), f"broker.{self.incarnation}")

    async def _unless_disk_fails(self, work: Coroutine[Any, Any, None]) -> None:
        """A process that cannot start or stop for want of a disk ends, and is started again."""
        try:
            await work
        except (StorageFull, StorageFailed) as error:
            if not self.disk_had_faults:
                raise
            self._note(f"ends: {error}")
            self._sync_fault = None
            self.disk.sync_fails = False
            self._die(Fault(self.world.now, "disk", power_cut=True, down_s=0.5))

    async def _run(self) -> None:
        backend = self.new_backend(
            self.disk.mount(), self.clock, on_fatal=self._disk_failed, **self.scenario.storage
        )
        rng = self.world.stream(f"broker {self.incarnation}")
        self.broker = Broker(self.scenario.broker_config(), backend, self.clock, rng)
        await self.broker.start(("127.0.0.1", PORT))
        name = TopicName.parse(PARTITIONED)
        if not self.broker.topics.tenants.partitions(name):
            await self.broker.topics.create_partitioned(name, PARTITIONS)
        if self.incarnation == 1:
            await self._set_guards()
        self.serving = True
        self._note("serves")
        for tell in self.on_serving:
            tell()

    async def _set_guards(self) -> None:
        for topic, subscription in self.scenario.guards:
            loaded = await self.topics.get(topic, create=True)
            assert loaded is not None
            await loaded.subscription(subscription, EARLIEST, {}, create=True)

    @property
    def topics(self) -> Topics:
        assert self.broker is not None
        return self.broker.topics

    def begin(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        """An administrator's request, whose answer nobody waits for."""
        assert self.node is not None
        self.node.create_task(self._tried(work, what))

    async def _tried(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        try:
            await work
        except (PulsarError, ManagedLedgerError, Conflict) as error:
            self._note(f"{what}: {error!r}")

    def _disk_failed(self, error: Exception) -> None:
        if self._sync_fault is None:
            self.history.failures.append(f"DISK FAILED without a fault: {error!r}")
            return
        # What a failed sync left on the disk is anybody's guess; the process ends.
        fault, self._sync_fault = self._sync_fault, None
        self.disk.sync_fails = False
        # One that failed just before the end of all faults: who looks at what is left shall hear.
        self._die(replace(fault, power_cut=True, silent=fault.silent and not self._faults_end))

    def _note(self, what: str) -> None:
        self.history.notes.append(f"{self.world.now:9.4f} broker.{self.incarnation} {what}")

    # --- faults

    def crash(self, fault: Fault) -> None:
        """Stop at once or at a disk operation to come; start again after a while."""
        if self._faults_end or self.node is None or self.node.dead:
            return
        if fault.disk_operation:
            self.disk.crash_after(fault.disk_operation, lambda: self._die(fault))
        else:
            self._die(fault)

    def fill_disk(self, fault: Fault) -> None:
        """No room for anything more, for a while."""
        self.disk_had_faults = True
        self.disk.fill_up(fault.disk_operation * 20)
        self.world.after(fault.down_s + 0.5, self.disk.make_room)

    def fail_sync(self, fault: Fault) -> None:
        if self.serving:
            self.disk_had_faults = True
            self._sync_fault = fault
            self.disk.sync_fails = True

    def stop_orderly(self, down_s: float) -> None:
        """As SIGTERM does; start again after a while."""
        if self.serving:
            assert self.node is not None
            self.serving = False
            self.node.start(self._unless_disk_fails(self._stop(down_s)), "stop")

    async def _stop(self, down_s: float) -> None:
        assert self.node is not None
        assert self.broker is not None
        await self.broker.stop()
        self._note("stopped")
        self.world.after(down_s, self._restart, self.node)

    def _restart(self, stopped: Node) -> None:
        if not stopped.dead:  # else it crashed in between, and is started again because of that
            stopped.crash()
            self.disk.unmount()
            self.start()

    def restart(self, fault: Fault) -> None:
        """Now, whatever else was said about faults."""
        if fault.kind == "stop":
            self.stop_orderly(fault.down_s)
        else:
            self._die(fault)

    def _die(self, fault: Fault) -> None:
        assert self.node is not None
        self.serving = False
        self.node.crash(silently=fault.silent)
        self.disk.unmount()
        if fault.power_cut:
            self.disk.lose_power()
        self._note(f"crashed: {fault}")
        self.world.after(fault.down_s, self.start)

    def heal(self) -> None:
        """No more crashes, not even those that wait for their disk operation."""
        self._faults_end = True
        self.disk.spare()
        self.disk.sync_fails = False
        self.disk.make_room()

    # --- what an administrator would see

    def open_transactions(self) -> list[str]:
        """Those of a coordinator that is on its way back count, too: nobody knows them yet."""
        assert self.broker is not None
        served = {c.coordinator_id: c for c in self.broker.coordinators.served()}
        exist = range(self.scenario.coordinators)
        logs = [number for number in exist if self.broker.ledgers.exists(log_name(number))]
        known = [str(txn.txn_id) for coordinator in served.values() for txn in coordinator.live()]
        return known + [f"of coordinator {number}" for number in logs if number not in served]

    def open_in_topics(self) -> list[tuple[str, TxnId]]:
        """Transactions that hold a topic's readers back.

        Not one whose entries were trimmed, perhaps with its marker: the topic, just loaded, is
        asking for its outcome. If that lasts, `unsettled` tells.
        """
        if not self.serving or self.broker is None:
            return []
        return [
            (str(topic.name), ongoing.txn_id)
            for topic in self.broker.topics.loaded()
            for ongoing in topic.buffer.ongoing()
            if ongoing.first_position is None
            or ongoing.first_position >= topic.ledger.first_position
        ]

    def waits_aside(self, topic: str, txn_id: TxnId) -> bool:
        """Where an abort that a crash has undone waits to be done again: it holds nobody back."""
        aside = self.topics.serving(TopicName.parse(topic)).buffer._aside  # type: ignore[union-attr]
        return aside is not None and txn_id in aside.open

    def end_of(self, topic: str) -> tuple[int, int] | None:
        """Where the log of a topic that is being served ends."""
        if not self.serving or self.broker is None:
            return None
        loaded = self.topics.serving(TopicName.parse(topic))
        return None if loaded is None else loaded.ledger.last_confirmed

    async def times_in(self, topic: str) -> list[tuple[tuple[int, int], int]]:
        """When each message that stands there was published, hidden ones too."""
        loaded = await self.topics.get(topic)
        assert loaded is not None
        ledger, times = loaded.ledger, []
        position: Position = ledger.first_position
        while run := await ledger.read(position, ledger.last_confirmed, 100, 1 << 20):
            for offset, (entry, count) in enumerate(
                zip(run.entries, run.message_counts, strict=True)
            ):
                if count:  # else it is a marker
                    at = run.ledger_id, run.first_entry_id + offset
                    times.append((at, parse_metadata(entry).publish_time))
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
        return times

    def unsettled(self) -> list[str]:
        """Topics that still hide something though no transaction is open."""
        assert self.broker is not None
        return [
            f"PINNED: {topic.name} is readable up to {topic.max_read_position}, "
            f"not to {topic.ledger.last_confirmed}"
            for topic in self.broker.topics.loaded()
            if topic.max_read_position != topic.ledger.last_confirmed
        ]
