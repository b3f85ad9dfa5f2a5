"""Similar names, and small pending-ack logs.

Topic "one" with subscription "x-s" beside "one-x" with "s", and a subscription whose name ends like
an old log.
"""

import random
from dataclasses import replace
from typing import Final

from clients.transacting import Transformer, TxnProducer
from sim_scenario import Scenario

from features.feature import Feature

OLD_ENDING: Final = "__transaction_pending_ack"
PAIRS: Final = (  # topic, subscription, output topic
    ("one", "x-s", "out-x-s"),
    ("one-x", "s", "out-s"),
    ("one", f"old{OLD_ENDING}", "out-s"),
)


class SimilarNames(Feature):
    """Subscriptions that acknowledge in transactions: two with the same joined name, and one whose
    log is named like an old log.
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
    """Pending-ack logs are rewritten after a few records, also with parts of batches."""

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
