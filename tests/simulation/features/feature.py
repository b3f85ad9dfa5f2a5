"""The base of all features: where a simulation asks them what they want."""

import random
from typing import TYPE_CHECKING, ClassVar

from checks.history import Logs
from sim_scenario import ACTIVE_S, Scenario

from pybroker.simulation.faults import Fault

if TYPE_CHECKING:
    from sim_seed import Simulation


class Feature:
    """Made once the scenario is prepared; everything it draws comes from a stream of its own."""

    name: ClassVar[str]
    meets_others: ClassVar[bool] = True  # else it is drawn alone
    topics: ClassVar[tuple[str, ...]] = ()  # what the account shall read, beside the scenario's

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        """The scenario as the feature needs it."""
        return scenario

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.history = simulation.history
        self.broker = simulation.broker
        self.rng = self.world.stream(f"feature {self.name}")

    def begin(self) -> None:
        """The broker serves for the first time: create processes, plan what is to happen."""

    def heal(self) -> None:
        """Faults end here."""

    def rest(self) -> None:
        """Wait for what has to come to its end."""

    def account(self, logs: Logs) -> list[str]:
        """All has come to rest: which promises were broken?"""
        return []

    def end(self) -> None:
        """Called last of all, however the seed ended."""

    def some_time(self) -> float:
        """When something shall happen: rather early, while most is going on."""
        return ACTIVE_S * self.rng.random() ** 1.5

    def note(self, what: str) -> None:
        self.history.notes.append(f"{self.world.now:9.4f} {self.name}: {what}")

    def count(self, what: str) -> None:
        self.history.counts[what] += 1


def half_way(rng: random.Random) -> Fault:
    """A crash at one of the next disk operations: in the middle of what is about to begin."""
    down_s = rng.choice((0.0, 0.1, 1.0))
    return Fault(0.0, "crash", rng.random() < 0.6, False, rng.randint(1, 12), down_s)
