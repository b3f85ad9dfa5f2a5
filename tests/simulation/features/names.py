"""Names that are alike: "one" with "x-s" beside "one-x" with "s", and a subscription that ends as
logs once did; and small pending-ack logs.
"""

import random
from dataclasses import replace
from typing import Final

from clients.transacting import Transformer, TxnProducer
from sim_scenario import Scenario

from features.feature import Feature

OLD_ENDING: Final = "__transaction_pending_ack"
PAIRS: Final = (  # and where they write
    ("one", "x-s", "out-x-s"),
    ("one-x", "s", "out-s"),
    ("one", f"old{OLD_ENDING}", "out-s"),
)


class SimilarNames(Feature):
    """Subscriptions that acknowledge in transactions: two whose joined names are the same, and one
    whose log is named as such logs once were.
    """

    name = "similar names"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, topics=(*scenario.topics, "one-x"))

    def begin(self) -> None:
        common = self.world, self.history
        simulation = self.simulation
        simulation.outputs += dict.fromkeys(output for _, _, output in PAIRS)
        for topic, subscription, output in PAIRS:
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
