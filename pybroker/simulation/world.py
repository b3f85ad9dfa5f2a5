"""Virtual time for many processes at once: one `World`, and one asyncio loop (`Node`) per process.

The world is a queue of events by virtual time. Time jumps to the next event; nothing ever waits.
Each node is a complete asyncio loop: `get_running_loop()` in its code returns the node.

asyncio code may rely on three orders, which each node keeps: `call_soon` is first in, first out;
timers fire in the order of their deadlines; handles added during an iteration run in the next one.
Everything that is independent in a real machine is drawn from the seed: how long an iteration takes
(sometimes the loop stalls), when executor jobs start and end, when bytes arrive, and the order of
events at the same instant. So deliveries, completions and timers come between any two iterations of
a chain of callbacks.

`crash` makes a node dead: none of its code runs any more. Its suspended coroutines are kept until
the world closes, because the collection of a coroutine would run its `finally` blocks.
"""

import sys
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine
from heapq import heappop
from typing import Any, Final, TypeVar

from pybroker.simulation.events import Events, Weather
from pybroker.simulation.network import Network
from pybroker.simulation.node import Node, named

T = TypeVar("T")
AnyNode = TypeVar("AnyNode", bound=Node)
EPOCH_MS: Final = 1_700_000_000_000


class OutOfSteps(Exception):
    """The world did not come to rest: some code loops without a pause, or the limit is low."""


class World(Events):
    """Everything that happens in one seed."""

    def __init__(self, seed: int | str, weather: Weather | None = None) -> None:
        super().__init__(seed, weather)
        self.nodes: list[Node] = []
        self.network = Network(self)

    def node(self, name: str) -> Node:
        return self.add(Node(self, self.network, name))  # type: ignore[abstract]

    def add(self, node: AnyNode) -> AnyNode:
        self.nodes.append(node)
        return node

    def run(
        self, until: Callable[[], bool] | None, within_s: float, max_steps: int = 2_000_000
    ) -> bool:
        """Processes events until `until()` is true; False if that takes more than `within_s`
        virtual seconds.

        Raises OutOfSteps.
        """
        deadline = self.now + within_s
        budget = self.steps + max_steps
        events_to_come, timer_due = self._events, Node.timer_due
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._keep_asyncgen)
        try:
            while until is None or not until():
                if not events_to_come or events_to_come[0][0] > deadline:
                    self.now = max(self.now, deadline)
                    return False
                if self.steps >= budget:
                    raise OutOfSteps(f"{max_steps} steps without an end, at {self.now:.3f} s")
                when, _, _, action, args = heappop(events_to_come)
                if action is timer_due and args[1]._cancelled:
                    continue  # a cancelled timer does not move time
                self.steps += 1
                self.now = when
                action(*args)
        finally:
            sys.set_asyncgen_hooks(*hooks)
        return True

    def call(self, node: Node, work: Coroutine[Any, Any, T], within_s: float = 600.0) -> T:
        """Runs a coroutine on a node to its end and returns its result. Raises TimeoutError."""
        task = node.create_task(work, name=f"{node.name}: {named(work)}")
        if not self.run(task.done, within_s):
            raise TimeoutError(f"{task.get_name()} did not end within {within_s} virtual seconds")
        result: T = task.result()
        return result

    def sleep(self, seconds: float) -> None:
        """Lets `seconds` of virtual time pass."""
        self.run(None, seconds)

    def close(self) -> None:
        """Releases everything without running any more code of the nodes."""
        for node in self.nodes:
            node.dead = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about coroutines that never ran
            for node in self.nodes:
                node.bury()
            self._events.clear()

    def _keep_asyncgen(self, generator: Any) -> None:
        if isinstance(node := events._get_running_loop(), Node):
            node.keep(generator)


class SimulatedClock:
    """The wall clock and the monotonic time of one machine. `offset_ms` changes when its clock is
    set.
    """

    def __init__(self, world: World, offset_ms: int = 0) -> None:
        self._world = world
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._world.now * 1000)

    def monotonic_s(self) -> float:
        return self._world.now
