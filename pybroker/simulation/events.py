"""The queue of events by virtual time, and the random numbers that order them."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush
from typing import Any


@dataclass(frozen=True, slots=True)
class Weather:
    """Speed and steadiness of this world's machines; drawn once per seed. Times in seconds."""

    iteration_s: float = 2e-5
    stall_chance: float = 0.0  # per loop iteration
    stall_s: float = 0.1
    job_delay_s: float = 1e-4
    latency_s: float = 5e-4
    latency_spike_chance: float = 0.0  # per write
    latency_spike_s: float = 0.2
    split_chance: float = 0.0  # per delivery
    write_limit_bytes: int = 1 << 30  # a transport's greatest high-water mark
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


class Events:
    """Virtual time. Events at the same instant happen in an order drawn from the seed."""

    def __init__(self, seed: int | str, weather: Weather | None = None) -> None:
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self.job_cost_s = 0.0  # virtual time of the running executor job so far
        self.failures: list[str] = []  # unhandled exceptions on nodes that were alive
        self.numbers = itertools.count()  # of tasks and futures
        self._random = self.stream("world").random
        self.weather = weather or Weather.draw(self.stream("weather"))
        self._events: list[tuple[float, float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0

    def stream(self, name: str) -> random.Random:
        """A random generator for one purpose. Its use does not change the numbers of the others."""
        return random.Random(f"{self.seed}/{name}")

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        self._sequence = sequence = self._sequence + 1
        if when < self.now:
            when = self.now
        heappush(self._events, (when, self._random(), sequence, action, args))

    def after(self, delay_s: float, action: Callable[..., object], *args: Any) -> None:
        self._sequence = sequence = self._sequence + 1
        heappush(self._events, (self.now + delay_s, self._random(), sequence, action, args))
