"""The broker's process in a simulation: the whole broker on a simulated disk, through crashes.

`SimulatedBroker` is the machine: its disk and its clock outlive the process. A crash ends the
process, now or at a later disk operation, and restarts it after a while. A power cut also decides
which unsynced writes are on the disk.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from managed_ledger.errors import StorageFailed, StorageFull
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.topics import Topics
from pybroker.process.app import Broker
from pybroker.simulation.disk import SimulatedDisk
from pybroker.simulation.faults import Fault
from pybroker.simulation.node import Node
from pybroker.simulation.world import SimulatedClock, World
from pybroker.transaction.coordinator.log.transaction_log import log_name

PORT: Final = 6650
KAFKA_PORT: Final = 9092
_BYTES_PER_OPERATION: Final = 20  # room on a full disk: this times the drawn number
_UNTIL_ROOM_S: Final = 0.5


class SimulatedBroker:
    """Subclasses override `note` and `fail` to keep a history, and `prepare` for what each start
    needs before the broker counts as serving.
    """

    def __init__(
        self, world: World, config: BrokerConfig, storage: Mapping[str, int] | None = None
    ) -> None:
        """`storage` are options of `EmbeddedBackend`."""
        self.world = world
        self.config = config
        self.disk = SimulatedDisk(world)
        self.clock = SimulatedClock(world)
        self.incarnation = 0
        self.node: Node | None = None
        self.broker: Broker | None = None
        self.serving = False
        self.new_backend: Callable[..., EmbeddedBackend] = EmbeddedBackend
        self.before_start: list[Callable[[], None]] = []  # called before each start
        self.on_serving: list[Callable[[], None]] = []  # called when the broker serves
        self.disk_had_faults = False
        self.serves_kafka = False  # set it before the start
        self._storage = dict(storage or {})
        self._faults_end = False
        self._sync_fault: Fault | None = None

    def note(self, what: str) -> None:
        """Records an event of this process."""

    def crashed(self, fault: Fault) -> None:
        """Called when the process has ended for this reason."""
        self.note(f"crashed: {fault}")

    def fail(self, what: str) -> None:
        """Records something that must not happen."""
        self.world.failures.append(what)

    async def prepare(self) -> None:
        """Called on the broker's loop after each start."""

    # --- life

    def start(self) -> None:
        for prepare in self.before_start:
            prepare()
        self.incarnation += 1
        self.node = self.world.node(f"broker.{self.incarnation}")
        self.node.start(self._unless_disk_fails(self._run()), f"broker.{self.incarnation}")

    async def _unless_disk_fails(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a start or a stop. If the disk fails meanwhile, the process ends and restarts."""
        try:
            await work
        except (StorageFull, StorageFailed) as error:
            if not self.disk_had_faults:
                raise
            self.note(f"ends: {error}")
            self._sync_fault = None
            self.disk.sync_fails = False
            self._die(Fault(self.world.now, "disk", power_cut=True, down_s=0.5))

    async def _run(self) -> None:
        backend = self.new_backend(
            self.disk.mount(), self.clock, on_fatal=self._disk_failed, **self._storage
        )
        rng = self.world.stream(f"broker {self.incarnation}")
        self.broker = Broker(self.config, backend, self.clock, rng)
        kafka = ("127.0.0.1", KAFKA_PORT) if self.serves_kafka else None
        await self.broker.start(("127.0.0.1", PORT), kafka=kafka)
        await self.prepare()
        self.serving = True
        self.note("serves")
        for tell in self.on_serving:
            tell()

    @property
    def topics(self) -> Topics:
        assert self.broker is not None
        return self.broker.topics

    def _disk_failed(self, error: Exception) -> None:
        if self._sync_fault is None:
            self.fail(f"DISK FAILED without a fault: {error!r}")
            return
        # After a failed sync the contents of the disk are undefined; the process ends.
        fault, self._sync_fault = self._sync_fault, None
        self.disk.sync_fails = False
        # After the end of all faults peers are told, so that the final check does not wait for a
        # lost connection.
        self._die(replace(fault, power_cut=True, silent=fault.silent and not self._faults_end))

    # --- faults

    def crash(self, fault: Fault) -> None:
        """Ends the process now or at a later disk operation; restarts it after a while."""
        if self._faults_end or self.node is None or self.node.dead:
            return
        if fault.disk_operation:
            self.disk.crash_after(fault.disk_operation, lambda: self._die(fault))
        else:
            self._die(fault)

    def fill_disk(self, fault: Fault) -> None:
        """Fills the disk for a while."""
        self.disk_had_faults = True
        self.disk.fill_up(fault.disk_operation * _BYTES_PER_OPERATION)
        self.world.after(fault.down_s + _UNTIL_ROOM_S, self.disk.make_room)

    def fail_sync(self, fault: Fault) -> None:
        """Makes the next sync fail. The process then ends, as it does on a real disk."""
        if self.serving:
            self.disk_had_faults = True
            self._sync_fault = fault
            self.disk.sync_fails = True

    def stop_orderly(self, down_s: float) -> None:
        """Stops the broker as SIGTERM does; restarts it after a while."""
        if self.serving:
            assert self.node is not None
            self.serving = False
            self.node.start(self._unless_disk_fails(self._stop(down_s)), "stop")

    async def _stop(self, down_s: float) -> None:
        assert self.node is not None
        assert self.broker is not None
        await self.broker.stop()
        self.note("stopped")
        self.world.after(down_s, self._restart, self.node)

    def _restart(self, stopped: Node) -> None:
        if not stopped.dead:  # dead: it crashed meanwhile, and the crash restarts it
            stopped.crash()
            self.disk.unmount()
            self.start()

    def restart(self, fault: Fault) -> None:
        """Restarts the broker now, even if other faults are scheduled."""
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
        self.crashed(fault)
        self.start_after(fault)

    def start_after(self, fault: Fault) -> None:
        self.world.after(fault.down_s, self.start)

    def heal(self) -> None:
        """Ends all faults, even scheduled crashes."""
        self._faults_end = True
        self.disk.spare()
        self.disk.sync_fails = False
        self.disk.make_room()

    # --- what an administrator would see

    def open_transactions(self) -> list[str]:
        """Open transactions. A coordinator that is not served counts as one, because its
        transactions are not known: it is being reopened, or the broker is down, starts or stops.
        """
        numbers = range(self.config.transaction_coordinators)
        if not self.serving or self.broker is None:
            return [f"of coordinator {number}" for number in numbers]
        coordinators, ledgers = self.broker.coordinators, self.broker.ledgers
        served = {c.coordinator_id: c for c in coordinators.served()}
        logs = [number for number in numbers if ledgers.exists(log_name(number))]
        known = [str(txn.txn_id) for coordinator in served.values() for txn in coordinator.live()]
        return known + [f"of coordinator {number}" for number in logs if number not in served]
