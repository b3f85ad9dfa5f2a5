"""A disk that is full for moments: some writes are refused between others that succeed."""

import random
from dataclasses import replace
from typing import Final

from sim_scenario import Scenario

from features.feature import Feature

MOMENTS: Final = 100
MOST_S: Final = (0.0005, 0.002, 0.02, 0.2)
ROOM_BYTES: Final = (0, 200, 3_000, 2 << 20)  # the last: new ledgers, but messages refused


class Shortages(Feature):
    name = "shortages"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        # Many new ledgers: appends held for one continue when there is room again.
        return replace(scenario, max_entries_per_ledger=rng.choice((4, 8, 30)))

    def begin(self) -> None:
        self.broker.disk_had_faults = True
        for _ in range(self.rng.randint(1, MOMENTS)):
            self.world.after(self.some_time(), self._fill)

    def _fill(self) -> None:
        disk = self.broker.disk
        if disk.capacity_bytes != disk.usual_capacity_bytes or not self.simulation.has_begun:
            return  # it is full already, or others create what they begin with
        self.count("disks full for a moment")
        disk.fill_up(self.rng.choice(ROOM_BYTES))
        self.world.after(self.rng.random() * self.rng.choice(MOST_S), disk.make_room)

    def heal(self) -> None:
        self.broker.disk.make_room()


FEATURES: Final = (Shortages,)
