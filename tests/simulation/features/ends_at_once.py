"""Transactions that commit at the same time on the same topics, while the broker crashes.

In commit order, the topics agree on the order of the commits, even after a crash in the middle.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from checks.history import Sent, Txn
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import half_way
from features.ordering import CommitOrder
from pybroker.broker.policies.transaction_buffers import COMMIT_ORDER

TOPICS: Final = ("ends-0", "ends-1", "ends-2")


class Overlapping(Transacting):
    """Begins transactions of one coordinator; each writes to all topics, in any order."""

    def __init__(self, *args: Any, count: int, about_to_decide: Callable[[], None]) -> None:
        super().__init__(*args)
        self._left = count
        self._about_to_decide = about_to_decide
        self._numbers = dict.fromkeys(TOPICS, 0)

    async def work(self, client: Any) -> None:
        producers = {topic: await client.create_producer(topic) for topic in TOPICS}
        while self._left and not self.stopping:
            self._left -= 1
            try:
                txns = await self._begin(client)
                await self._publish(producers, txns)
            except FAILURES as error:
                self.note(f"what would have ended at once failed: {error!r}")
                continue
            self._about_to_decide()
            self.rng.shuffle(txns)
            await asyncio.gather(*(self.commit(*each) for each in txns))
            self.history.counts["ended at once"] += 1
            await self.pause(0.3)

    async def _begin(self, client: Any) -> list[tuple[Any, Txn]]:
        txns = [await self.begin(client)]
        first = txns[0][0].txn_id
        for _ in range(self.rng.randint(1, 3)):
            txn = await client.new_transaction(15_000, beside=first)
            name = f"{self.name}.{self.incarnation} {txn.txn_id}"
            txns.append((txn, self.history.begin(name, txn.txn_id, self.node)))
        return txns

    async def _publish(self, producers: Any, txns: Sequence[tuple[Any, Txn]]) -> None:
        pairs = [(topic, each) for topic in TOPICS for each in txns]
        self.rng.shuffle(pairs)
        for topic, (txn, record) in pairs:
            number = self._numbers[topic] = self._numbers[topic] + 1
            name = f"{self.name}-{topic}"
            sender = f"{name}.{self.incarnation}"
            sent = Sent(f"{name}/{number}", topic, sender, number, True, record)
            await self.publish(producers[topic], self.history.send(sent), txn)


class EndsAtOnce(CommitOrder):
    """The whole broker uses commit order."""

    name = "ends at once"
    meets_others = False
    topics = TOPICS

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        guards = (*scenario.guards, *((name, "guard") for name in TOPICS))
        return replace(scenario, guards=guards, transaction_buffer=COMMIT_ORDER)

    def plan(self) -> None:
        self.crashes = self.rng.choice((1, 3, 6))
        self.simulation.producers += [
            Overlapping(
                self.world,
                self.history,
                f"overlapping-{number}",
                count=self.rng.choice((4, 12)),
                about_to_decide=self._maybe_crash,
            )
            for number in range(self.rng.randint(1, 2))
        ]

    def _maybe_crash(self) -> None:
        if self.crashes and self.broker.serving and self.rng.random() < 0.5:
            self.crashes -= 1
            self.count("crashes amid ends")
            self.broker.crash(half_way(self.rng))

    def heal(self) -> None:
        self.crashes = 0


FEATURES: Final = (EndsAtOnce,)
