"""Topics in commit order: open transactions block no reader, and transactions appear as they
commit.

The whole broker uses commit order from start to end, or topics switch to it and back while they are
used. Copies are made at once, or in pieces.
"""

import random
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from checks.history import History, Turn
from clients.admin import Unanswered, ask
from clients.plain import Process
from sim_broker import BrokerProcess
from sim_scenario import Scenario

from features.feature import Feature, half_way
from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.policies.transaction_buffers import (
    COMMIT_ORDER,
    LOG_ORDER,
    TRANSACTION_BUFFER,
)
from pybroker.broker.topics import Topics
from pybroker.transaction.buffer.commit_order import commit_order_buffer, copying, side_log
from pybroker.transaction.coordinator.ends.participants import Participant, ParticipantEnds

NAMESPACE: Final = "public/default"
if TYPE_CHECKING:
    from sim_seed import Simulation

CHOICES: Final = (COMMIT_ORDER, COMMIT_ORDER, LOG_ORDER, LOG_ORDER, None)
CRASH_CHANCE: Final = 0.15


class Orders:
    """Since when each topic (as a whole, if partitioned) has surely been in commit order."""

    def __init__(self, history: History, usual: str) -> None:
        self._history, self._usual = history, usual
        self._since: dict[str, Turn] = {}
        self._changed: dict[str, None] = {}

    def _holds(self, topic: str) -> bool:
        return topic in self._since or (self._usual == COMMIT_ORDER and topic not in self._changed)

    def will_change(self, topic: str, parts: Iterable[str]) -> None:
        """From now until the answer, the order of the topic is unknown."""
        until = self._history.turn()
        since = self._since.pop(topic, None) if self._holds(topic) else until
        self._changed[topic] = None
        for part in parts:  # even an empty period rules out log order
            self._history.in_commit_order(part, since, until)

    def has_changed(self, topic: str, order: str | None) -> None:
        if (order or self._usual) == COMMIT_ORDER:
            self._since[topic] = self._history.turn()

    def at_rest(self, topic: str, parts: Iterable[str]) -> None:
        if self._holds(topic):
            for part in parts:
                self._history.in_commit_order(part, self._since.get(topic))


class OrderSwitcher(Process):
    """Retries until it is answered, in later lives too: an earlier request may still be carried
    out.
    """

    def __init__(self, *args: Any, broker: BrokerProcess, orders: Orders) -> None:
        super().__init__(*args)
        self.broker, self.orders = broker, orders
        self.left = self.rng.randint(1, 10)
        self.asked: tuple[TopicName, str | None] | None = None

    async def work(self, client: Any) -> None:
        while self.left or self.asked:
            await self.pause(1.5)
            if self.asked is None:
                self.left -= 1
                self._choose()
            else:
                await self._switch(*self.asked)

    def _choose(self) -> None:
        if not self.broker.serving:
            return
        topics = self.broker.topics
        whole = dict.fromkeys(each.name.partitioned_name for each in topics.loaded())
        if there := [each for each in whole if each.namespace_name == NAMESPACE]:
            name = self.rng.choice(there)
            parts = map(name.partition_at, range(topics.tenants.partitions(name)))
            self.orders.will_change(str(name), [*map(str, parts)] or [str(name)])
            self.asked = name, self.rng.choice(CHOICES)

    async def _switch(self, name: TopicName, order: str | None) -> None:
        async def switch(topics: Topics) -> None:
            await topics.policies.set_for_topic(name, TRANSACTION_BUFFER, order)
            await topics.following.told()

        crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
        try:
            await ask(self.broker, switch, crash)
        except (Unanswered, ManagedLedgerError) as why:
            self.note(f"switches {name} to {order}: {why!r}")
            return
        except TopicNotFound:
            self.asked = None
            return
        self.asked = None
        self.note(f"{name} is in {order}")
        self.history.counts["order switched"] += 1
        self.orders.has_changed(str(name), order)


class CommitOrder(Feature):
    name = "commit order"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        usual = COMMIT_ORDER if rng.random() < 0.75 else LOG_ORDER
        return replace(scenario, transaction_buffer=usual)

    def __init__(self, simulation: "Simulation") -> None:
        super().__init__(simulation)
        self.cuts = ExitStack()

    def begin(self) -> None:
        self._watch_who_is_told_again()
        if self.rng.random() < 0.6:
            self._cut_to_small_pieces()
        self.orders = Orders(self.history, self.simulation.scenario.transaction_buffer)
        self.plan()

    def plan(self) -> None:
        """Plans the events."""
        if self.rng.random() < 0.5:
            switcher = OrderSwitcher(
                self.world, self.history, "order-switcher", broker=self.broker, orders=self.orders
            )
            self.simulation.producers.append(switcher)

    def _watch_who_is_told_again(self) -> None:
        noted, told_again = ParticipantEnds.note, self.history.told_again

        def note(
            ends: ParticipantEnds, txn_id: TxnId, participant: Participant, error: BaseException
        ) -> None:
            told_again.add((txn_id, participant.topic))
            noted(ends, txn_id, participant, error)

        self.cuts.enter_context(patch.object(ParticipantEnds, "note", note))

    def _cut_to_small_pieces(self) -> None:
        """Copies, deletions and side logs that are large in life come in few entries here."""
        cuts, entries = self.cuts, self.rng.choice((1, 2, 5))
        most_bytes = self.rng.choice((0, 100, 1000))
        logs = replace(side_log._CONFIG, max_entries_per_ledger=self.rng.choice((2, 8, 50_000)))
        cuts.enter_context(patch.object(commit_order_buffer, "_AT_ONCE_BYTES", most_bytes))
        cuts.enter_context(
            patch.multiple(copying, _APPENDED_BYTES=most_bytes, _ON_THE_WAY_BYTES=most_bytes)
        )
        cuts.enter_context(
            patch.multiple(side_log, _CONFIG=logs, _READ_ENTRIES=entries, _DELETED_A_TURN=entries)
        )

    def end(self) -> None:
        self.cuts.close()

    def rest(self) -> None:
        """Records the order of all topics with messages, now that all are loaded."""
        names = {
            TopicName.parse(sent.topic).partitioned_name for sent in self.history.sent.values()
        }
        for name in sorted(names):
            self.orders.at_rest(str(name), self.simulation.partitions_of([name.local]))


FEATURES: Final = (CommitOrder,)
