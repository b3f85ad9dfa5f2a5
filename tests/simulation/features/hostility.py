"""Hostile clients beside all others, which must not notice them."""

from typing import Final

from clients.hostile import Hostile

from features.feature import Feature


class Hostility(Feature):
    name = "hostility"

    def begin(self) -> None:
        topics = self.simulation.partitions_of(self.simulation.scenario.topics)
        deeds = self.rng.choice((5, 15, 30))
        self.simulation.producers.append(
            Hostile(self.world, self.history, "hostile", topics=topics, deeds=deeds)
        )


FEATURES: Final = (Hostility,)
