"""One seed of a cluster, from beginning to end: see sim_seed.py."""

import random
from typing import Any, Final
from unittest.mock import patch

from sim_scenario import Scenario
from sim_seed import Report, Simulation

from brokers import features, trouble
from brokers.cluster import SimulatedCluster
from brokers.topology import Topology
from managed_ledger.storage.bookkeeper import ledger_ids
from pybroker.simulation.faults import Fault

# Ledger ids taken in advance. Two hundred per process would be most of a seed's work.
FEW_IDS: Final = {"KEPT": 20, "_AT_LEAST": 10, "_FIRST": 3}


class ClusterSimulation(Simulation):
    def run(self) -> Report:
        with patch.multiple(ledger_ids, **FEW_IDS):
            return super().run()

    def draw_features(self, rng: random.Random) -> tuple[str, ...]:
        return features.draw(rng, self.world.stream("features beside"))

    def feature(self, name: str) -> Any:
        return features.ALL[name]

    def draw_scenario(self, rng: random.Random) -> Scenario:
        return trouble.prepared(super().draw_scenario(rng), rng)

    def create_broker(self) -> Any:
        topology = Topology.draw(self.world.stream("topology"))
        return SimulatedCluster(
            self.world,
            self.history,
            self.scenario,
            topology,
            self._topics_of_clients,
            any(getattr(features.ALL[name], "serves_http", False) for name in self.enabled),
        )

    def _topics_of_clients(self) -> list[str]:
        return self.partitions_of((*self.scenario.topics, *self.outputs))

    def happen(self, fault: Fault) -> None:
        if fault.kind in trouble.DEEDS:
            self.history.counts[fault.kind] += 1
            trouble.happen(self.broker, fault)
        else:
            super().happen(fault)
