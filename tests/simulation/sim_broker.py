"""The broker process of a simulation: the whole product on a simulated disk, through crashes."""

from sim_disk import SimulatedDisk
from sim_history import History
from sim_loop import SimulatedClock, World
from sim_node import Node
from sim_scenario import Fault, Scenario


class BrokerProcess:
    """`disk` and `clock` outlive the process, as a machine does."""

    def __init__(self, world: World, history: History, scenario: Scenario) -> None:
        self.world = world
        self.history = history
        self.disk = SimulatedDisk(world)
        self.clock = SimulatedClock(world)
        self.incarnation = 0
        self.node: Node | None = None
        self.broker = None
        self._config = scenario.broker_config()
        self._restarts = True

    @property
    def serving(self) -> bool:
        return self.broker is not None and self.node is not None and not self.node.dead

    def start(self) -> None:
        self.incarnation += 1
        self.broker = None
        self.node = self.world.node(f"broker.{self.incarnation}")
        self.node.start(self._run())

    async def _run(self) -> None: ...

    def crash(self, fault: Fault) -> None:
        """Stop at once or at a disk operation to come; start again after a while."""
        if fault.disk_operation:
            self.disk.crash_after(fault.disk_operation, lambda: self._die(fault))
        else:
            self._die(fault)

    def _die(self, fault: Fault) -> None:
        assert self.node is not None
        if self.node.dead:
            return
        self.node.crash(silently=fault.silent)
        self.disk.unmount()
        if fault.power_cut:
            self.disk.lose_power()
        self.history.notes.append(f"{self.world.now:9.4f} broker crashed {fault}")
        self.world.after(fault.down_s, self.start)
