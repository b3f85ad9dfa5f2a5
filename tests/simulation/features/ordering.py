"""Topics in commit order: what is open holds nobody back, and transactions show as they commit."""

import random
from dataclasses import replace
from typing import Final

from sim_scenario import Scenario

from features.feature import Feature


class CommitOrder(Feature):
    name = "commit order"
    meets_others = False

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, transaction_buffer="commitOrder")

    def rest(self) -> None:
        """All topics that anybody wrote to, now that they are all there."""
        names = {sent.topic for sent in self.history.sent.values()}
        for topic in self.simulation.partitions_of(sorted(names)):
            self.history.in_commit_order(topic)


FEATURES: Final = (CommitOrder,)
