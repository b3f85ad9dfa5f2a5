"""External events of a broker: unloads, changed clocks, missing file descriptors."""

import random
from dataclasses import replace
from typing import Any, Final

from sim_scenario import Scenario

from features.feature import Feature, half_way
from pybroker.base.names import TopicName

HOUR_MS: Final = 3_600_000
YEAR_MS: Final = 365 * 24 * HOUR_MS


class Unloads(Feature):
    """An administrator unloads topics that are in use, or that are being loaded after a restart.
    Some unloads crash in the middle.
    """

    name = "unloads"

    def begin(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self.world.after(self.some_time(), self._unload)
        self.broker.on_serving.append(self._unload_at_a_start)

    def _unload_at_a_start(self) -> None:
        """Restarted coordinators are ending transactions on these topics."""
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            self.world.after(self.rng.choice((0.001, 0.03)) * self.rng.random(), self._unload)

    def _unload(self, again: TopicName | None = None) -> None:
        if not self.broker.serving:
            return
        topics = self.broker.topics
        there = [*topics._loaded, *topics._loading]
        if not there:
            return
        name = again if again in there else self.rng.choice(there)
        self.note(f"unloads {name}")
        self.count("unloads")
        if self.rng.random() < 0.4:  # it may be loading again by then
            self.world.after(0.3 * self.rng.random(), self._unload, name)
        elif self.rng.random() < 0.3:
            self.count("crashes in an unload")
            self.broker.crash(half_way(self.rng))
        self.broker.begin(topics.unload(name), f"unload {name}")


class Clocks(Feature):
    """The machine's wall clock is set back or forward, by seconds or by a year."""

    name = "clocks"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        # A jump forward may exceed any other retention.
        return replace(scenario, outcome_retention_s=20 * YEAR_MS / 1000, last_rest_s=0.0)

    def begin(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.world.after(self.some_time(), self._jump)

    def _jump(self) -> None:
        distance = self.rng.choice((1500, 30_000, HOUR_MS, 10 * HOUR_MS, YEAR_MS))
        offset = self.rng.choice((-1, 1)) * distance
        self.note(f"sets the clock by {offset} ms")
        self.count("clock jumps")
        self.broker.clock.offset_ms += offset
        self.history.clock_set_s = self.world.now


class Descriptors(Feature):
    """For a while no file can be opened or created."""

    name = "descriptors"

    def begin(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self.world.after(self.some_time(), self._run_out)

    def _run_out(self) -> None:
        self.note("no descriptors")
        self.count("times without descriptors")
        self.broker.disk_had_faults = True
        self.broker.disk.descriptors_out = True
        self.world.after(self.rng.choice((0.05, 0.5, 4.0)), self._are_back)

    def _are_back(self) -> None:
        self.broker.disk.descriptors_out = False

    def heal(self) -> None:
        self._are_back()


FEATURES: Final[tuple[Any, ...]] = (Unloads, Clocks, Descriptors)
