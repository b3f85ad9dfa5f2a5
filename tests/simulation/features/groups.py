"""Transactions of several coordinators that commit by one decision; some span the namespace.

All of a group are visible, or none is, and no promise stays pending forever. As with "committing
together", some groups have a member that ends alone. The broker crashes around the decision: before
a promise, between the promises and the decision, or before members follow.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sim_scenario import Scenario

from features.committing import Committer, CommittingTogether, Group

NAMESPACE: Final = "public/default"


class GroupCommitter(Committer):
    topics = tuple(f"persistent://public/default/grouped-{number}" for number in range(3))

    async def _begin_and_publish(self, client: Any, producers: Sequence[Any], group: Group) -> None:
        leader = None
        txns = []
        for _ in range(self.rng.randint(2, 5)):
            beside = leader if self.rng.random() < 0.3 else None
            namespace = self.rng.choice((None, NAMESPACE))
            timeout_ms = self.rng.choice((2000, 15_000))
            txn = await client.new_transaction(timeout_ms, beside=beside, namespace=namespace)
            leader = leader or txn.txn_id
            txns.append(txn)
            name = f"{group.name} {txn.txn_id}"
            group.members.append(self.history.begin(name, txn.txn_id, self.node))
            self.note(f"began {name}, timeout {timeout_ms} ms, namespace {namespace}")
        if len({txn.txn_id.most for txn in txns}) > 1:
            self.history.counts["groups of several coordinators"] += 1
        for number, txn in enumerate(txns):
            group.values.append([])
            for each in range(self.rng.randint(1, 3)):
                value = f"{group.name}.{number}.{each}"
                await self.rng.choice(producers).send(value.encode(), txn=txn)
                group.values[-1].append(value)


class Groups(CommittingTogether):
    name = "groups"
    committer = GroupCommitter

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(super().prepare(scenario, rng), coordinators=3)


FEATURES: Final = (Groups,)
