"""The machines of ZooKeeper and the bookies in a simulated world: they crash and restart."""

from typing import Final

from sim_bookie import Disk, SimulatedBookie
from sim_zookeeper import SimulatedZooKeeper, Tree

from pybroker.simulation.node import Node
from pybroker.simulation.world import World

FIRST_PORT: Final = 3181


class Machines:
    def __init__(self, world: World, bookies: int) -> None:
        self.world = world
        self.tree = Tree()
        for path in ("/ledgers/available/readonly", "/ledgers/idgen"):
            self.tree.make(path)
        self.disks = {FIRST_PORT + number: Disk() for number in range(bookies)}
        self.bookies: dict[int, Node] = {}
        self.serving: dict[int, SimulatedBookie] = {}  # their processes, dead ones too
        self._names = 0
        self._start_zookeeper()
        for port in self.disks:
            self._start_bookie(port)

    def node(self, name: str) -> Node:
        self._names += 1
        return self.world.node(f"{name} {self._names}")

    def _start_zookeeper(self) -> None:
        self.zookeeper = self.node("zookeeper")
        self.server = SimulatedZooKeeper(self.zookeeper, self.tree)
        self.zookeeper.start(self.server.run())

    def _start_bookie(self, port: int) -> None:
        node = self.bookies[port] = self.node(f"bookie {port}")
        rng = self.world.stream(node.name)
        bookie = self.serving[port] = SimulatedBookie(node, port, self.disks[port], rng)
        node.start(bookie.run())

    def crash_bookie(self, port: int, silently: bool, down_s: float) -> None:
        node = self.bookies[port]
        node.crash(silently)
        self.world.after(down_s, self._bookie_back, port, node)

    def _bookie_back(self, port: int, dead: Node) -> None:
        if self.bookies[port] is dead:
            self._start_bookie(port)

    def crash_zookeeper(self, down_s: float) -> None:
        """Answered requests are durable; the timeouts of clients' sessions start anew."""
        self.zookeeper.crash()
        self.world.after(down_s, self._zookeeper_back, self.zookeeper)

    def _zookeeper_back(self, dead: Node) -> None:
        if self.zookeeper is dead:
            self._start_zookeeper()
