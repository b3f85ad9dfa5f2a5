"""Virtual time for many processes at once: one `World`, one asyncio loop (`Node`) per process.

The world is a queue of events by virtual time; time jumps to the next event, nothing ever waits.
Each node is a whole asyncio loop of its own: `get_running_loop()` inside it returns the node.

What is shuffled, and what is not: asyncio code may rely on `call_soon` being first in, first out,
on timers firing in the order of their deadlines, and on handles added during an iteration running
in the next one. All three hold here, per node. Everything that is independent in a real machine
is drawn from the seed: how long an iteration takes (now and then the loop stalls), when executor
jobs start and end, when bytes arrive, and the order of events at the same instant. So deliveries,
completions and timers fall between any two iterations of a chain of callbacks.

`crash` makes a node dead: none of its code runs any more. Its suspended coroutines are kept until
the world closes, because a collected coroutine would run its `finally` blocks.
"""

import heapq
import itertools
import random
import sys
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from world.network import Network
from world.node import Node

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000


class OutOfSteps(Exception):
    """The world did not become quiet: something spins, or the budget is too small."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How fast and how steady this world's machines are; drawn once per seed."""

    iteration_s: float = 2e-5
    stall_chance: float = 0.0  # per loop iteration
    stall_s: float = 0.1
    job_delay_s: float = 1e-4
    latency_s: float = 5e-4
    latency_spike_chance: float = 0.0  # per write
    latency_spike_s: float = 0.2
    split_chance: float = 0.0  # per delivery
    write_limit_bytes: int = 1 << 30  # above it a transport pauses its protocol, whatever it asked
    disk_write_s: float = 1e-5
    disk_sync_s: float = 3e-3
    disk_stall_chance: float = 0.0  # per disk operation
    disk_stall_s: float = 2.0

    @classmethod
    def draw(cls, rng: random.Random) -> "Weather":
        rough = rng.random() < 0.5
        return cls(
            iteration_s=rng.choice((1e-6, 2e-5, 2e-4)),
            stall_chance=rng.choice((0.0, 0.001, 0.01)) if rough else 0.0,
            stall_s=rng.choice((0.01, 0.1, 1.0)),
            job_delay_s=rng.choice((1e-5, 1e-3)),
            latency_s=rng.choice((5e-5, 5e-4, 5e-3)),
            latency_spike_chance=rng.choice((0.0, 0.02)) if rough else 0.0,
            split_chance=rng.choice((0.0, 0.1, 0.5)),
            write_limit_bytes=rng.choice((1 << 30, 4096, 256)),
            disk_write_s=rng.choice((1e-5, 1e-4)),
            disk_sync_s=rng.choice((1e-4, 3e-3, 2e-2)),
            disk_stall_chance=rng.choice((0.0, 0.02)) if rough else 0.0,
        )


class World:
    """Everything that happens in one seed."""

    def __init__(self, seed: int | str, weather: Weather | None = None) -> None:
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self.job_cost_s = 0.0  # what the executor job that is running has cost so far
        self.failures: list[str] = []  # exceptions that nobody handled, on nodes that were alive
        self.nodes: list[Node] = []
        self.numbers = itertools.count()  # of tasks and futures
        self._random = self.stream("world").random
        self.weather = weather or Weather.draw(self.stream("weather"))
        self.network = Network(self)
        self._events: list[tuple[float, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def stream(self, name: str) -> random.Random:
        """Randomness for one purpose, so that the others do not change with its use."""
        return random.Random(f"{self.seed}/{name}")

    def node(self, name: str) -> Node:
        node = Node(self, name)
        self.nodes.append(node)
        return node

    def at(self, when: float, action: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        when = when if when > self.now else self.now
        heapq.heappush(self._events, (when, self._random(), self._sequence, action, args))

    def after(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        event = (self.now + delay_s, self._random(), self._sequence, action, args)
        heapq.heappush(self._events, event)

    def run(self, until: Callable[[], bool], within_s: float, max_steps: int = 2_000_000) -> bool:
        """Let things happen until `until()`; False if `within_s` virtual seconds were not enough.

        Raises OutOfSteps.
        """
        deadline = self.now + within_s
        budget = self.steps + max_steps
        events_to_come = self._events
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._keep_asyncgen)
        try:
            while not until():
                if not events_to_come or events_to_come[0][0] > deadline:
                    self.now = max(self.now, deadline)
                    return False
                if self.steps >= budget:
                    raise OutOfSteps(f"{max_steps} steps without an end, at {self.now:.3f} s")
                when, _, _, action, args = heapq.heappop(events_to_come)
                if action is Node.timer_due and args[1]._cancelled:
                    continue  # does not even move time
                self.steps += 1
                self.now = when
                action(*args)
        finally:
            sys.set_asyncgen_hooks(*hooks)
        return True

    def call(self, node: Node, work: Coroutine[Any, Any, T], within_s: float = 600.0) -> T:
        """Run a coroutine on a node to its end and return its result; raises TimeoutError."""
        task = node.create_task(work, name=f"{node.name}: {work.__qualname__}")
        if not self.run(task.done, within_s):
            raise TimeoutError(f"{task.get_name()} did not end within {within_s} virtual seconds")
        return task.result()

    def sleep(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        self.run(lambda: False, seconds)

    def close(self) -> None:
        """Let go of everything without running another line of the nodes' business."""
        for node in self.nodes:
            node.dead = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of coroutines that never came to run
            for node in self.nodes:
                node.bury()
            self._events.clear()

    def _keep_asyncgen(self, generator: Any) -> None:
        if isinstance(node := events._get_running_loop(), Node):
            node.keep(generator)


class SimulatedClock:
    """Wall and monotonic time of one machine; `offset_ms` jumps when somebody sets its clock."""

    def __init__(self, world: World, offset_ms: int = 0) -> None:
        self._world = world
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._world.now * 1000)

    def monotonic_s(self) -> float:
        return self._world.now
