"""Names that are alike: "one" with "x-s" beside "one-x" with "s", and small pending-ack logs."""

import random
from dataclasses import replace
from typing import Final

from clients.transacting import Transformer, TxnProducer
from sim_scenario import Scenario

from features.feature import Feature

PAIRS: Final = (("one", "x-s"), ("one-x", "s"))


class SimilarNames(Feature):
    """Two subscriptions whose joined names are the same; each acknowledges in transactions."""

    name = "similar names"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, topics=(*scenario.topics, "one-x"))

    def begin(self) -> None:
        common = self.world, self.history
        simulation = self.simulation
        for topic, subscription in PAIRS:
            output = f"out-{subscription}"
            simulation.outputs.append(output)
            simulation.transformers.append(
                Transformer(
                    *common, f"alike-{subscription}", topic=topic, subscription=subscription,
                    kind="Exclusive", output=output, cumulative=self.rng.random() < 0.5,
                )
            )  # fmt: skip
        simulation.producers.append(
            TxnProducer(
                *common, "alike", topics=["one", "one-x"], count=4,
                batching=simulation.scenario.batching,
            )
        )  # fmt: skip


class SmallLogs(Feature):
    """Pending acknowledgements are written anew after a few records, of parts of batches too."""

    name = "small logs"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(
            scenario,
            pending_ack_log_entries=rng.choice((1, 3, 4, 5)),
            batching=True,
            transformers=scenario.transformers or ("Exclusive", "Shared"),
        )


FEATURES: Final = (SimilarNames, SmallLogs)
