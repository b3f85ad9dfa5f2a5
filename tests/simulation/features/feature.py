"""The base class of features: the hooks that a simulation calls."""

import random
from typing import TYPE_CHECKING, ClassVar

from checks.history import Logs
from sim_scenario import ACTIVE_S, Scenario

from pybroker.simulation.faults import Fault

if TYPE_CHECKING:
    from sim_seed import Simulation


class Feature:
    """Created once the scenario is prepared; all its random draws come from its own stream."""

    name: ClassVar[str]
    meets_others: ClassVar[bool] = True  # otherwise it is drawn alone
    topics: ClassVar[tuple[str, ...]] = ()  # topics that the account reads, besides the scenario's

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        """The scenario, changed as the feature needs it."""
        return scenario

    def __init__(self, simulation: "Simulation") -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.history = simulation.history
        self.broker = simulation.broker
        self.rng = self.world.stream(f"feature {self.name}")

    def begin(self) -> None:
        """The broker serves for the first time: create processes, plan events."""

    def heal(self) -> None:
        """Faults end here."""

    def rest(self) -> None:
        """Wait for work that must complete."""

    def account(self, logs: Logs) -> list[str]:
        """The broken promises, once all is at rest."""
        return []

    def end(self) -> None:
        """Called at the very end, even after a failure of the seed."""

    def some_time(self) -> float:
        """A time for an event: usually early, while most is going on."""
        return ACTIVE_S * self.rng.random() ** 1.5

    def note(self, what: str) -> None:
        self.history.notes.append(f"{self.world.now:9.4f} {self.name}: {what}")

    def count(self, what: str) -> None:
        self.history.counts[what] += 1


def half_way(rng: random.Random) -> Fault:
    """A crash at one of the next disk operations, in the middle of the work that begins now."""
    down_s = rng.choice((0.0, 0.1, 1.0))
    return Fault(0.0, "crash", rng.random() < 0.6, False, rng.randint(1, 12), down_s)
