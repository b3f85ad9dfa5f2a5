"""Consumers that acknowledge parts of batches plainly and in transactions at the same time.

A message that a transaction holds comes back after an abort, whatever is acknowledged meanwhile,
and stays away after a commit.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from checks.history import Logs, Read, Txn
from clients.official import acknowledge_whole_batches
from clients.plain import read_of, subscribe
from clients.transacting import FAILURES, Transacting, TxnProducer
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.base.names import TopicName
from pybroker.client.errors import Timeout

KINDS: Final = ("Shared", "KeyShared", "Failover", "Exclusive")
TOPICS: Final = ("one", "mixed")
LATELY: Final = 20  # acknowledged messages are among the last so many received


@dataclass(slots=True)
class Deeds:
    """What all consumers of a subscription did, in all lives."""

    plainly: dict[Read, None] = field(default_factory=dict)  # perhaps
    txns: list[tuple[Txn, list[Read]]] = field(default_factory=list)


class Mixer(Transacting):
    def __init__(self, *args: Any, topic: str, kind: str, deeds: Deeds) -> None:
        super().__init__(*args)
        self.topic = topic
        self.kind = kind
        self.subscription = f"mixed-{kind}"
        self.deeds = deeds
        self.held: list[Any] = []  # messages of this session
        self.takes_batches_whole = self.world.stream(f"manners {self.name}").random() < 0.5

    async def work(self, client: Any) -> None:
        moves = self._receive, self._plainly, self._in_transaction, self._again, self._come_anew
        weights = [10, 6, 6, 4, 1]
        if self.takes_batches_whole:
            moves, weights = (*moves, self._cross), [*weights, 8]
        consumer = await self._subscribe(client)
        while not self.stopping:
            (move,) = self.rng.choices(moves, weights)
            consumer = await move(client, consumer) or consumer
            await self.pause(0.2)
        await consumer.close()

    async def _subscribe(self, client: Any) -> Any:
        self.held = []
        where = self.topic, self.subscription, self.kind
        if not self.takes_batches_whole:
            return await subscribe(self, client, *where)
        consumer = await subscribe(self, client, *where, batch_index_ack_enabled=False)
        acknowledge_whole_batches(consumer)
        return consumer

    async def _come_anew(self, client: Any, consumer: Any) -> Any:
        await consumer.close()
        return await self._subscribe(client)

    async def _receive(self, client: Any, consumer: Any) -> None:
        for _ in range(self.rng.randint(1, 8)):
            try:
                self.held.append(await consumer.receive(timeout_millis=100))
            except Timeout:
                return

    def _some(self) -> list[Any]:
        lately = self.held[-LATELY:]
        return self.rng.sample(lately, min(len(lately), self.rng.randint(1, 5)))

    async def _plainly(self, client: Any, consumer: Any) -> None:
        for message in self._some():
            self.deeds.plainly[read_of(message)] = None
            await consumer.acknowledge(message)

    async def _again(self, client: Any, consumer: Any) -> None:
        if self.rng.random() < 0.3:
            consumer.redeliver_unacknowledged_messages()
        else:
            for message in self._some():
                consumer.negative_acknowledge(message)

    async def _in_transaction(self, client: Any, consumer: Any) -> None:
        """Acknowledges in a transaction, with other work before its end and during it."""
        messages = self._some()
        if not messages:
            return
        txn, record = await self.begin(client)
        self.deeds.txns.append((record, [read_of(message) for message in messages]))
        self.history.counts["acknowledged beside a transaction"] += 1
        try:
            for message in messages:
                await consumer.acknowledge(message, txn=txn)
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            return
        await self._meanwhile(client, consumer)
        await asyncio.gather(self.end(client, txn, record), self._meanwhile(client, consumer))

    async def _cross(self, client: Any, consumer: Any) -> Any:
        """Acknowledges its part of a batch while the rest is in flight, and leaves."""
        batches = {each.order_key[:2] for each in self.held[-LATELY:] if each.order_key[2] >= 0}
        if not batches:
            return None
        batch = self.rng.choice(sorted(batches))
        parts = [each for each in self.held if each.order_key[:2] == batch]
        txn, record = await self.begin(client)
        held = self.rng.choice(parts)
        self.deeds.txns.append((record, [read_of(held)]))
        try:
            await consumer.acknowledge(held, txn=txn)
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            return None
        self.held = []
        consumer.redeliver_unacknowledged_messages()
        await self._receive(client, consumer)
        parts = [each for each in self.held if each.order_key[:2] == batch]
        await asyncio.gather(self.abort(txn, record), self._soon(consumer, parts))
        (part,) = consumer._parts.values()
        if not (consumer.is_connected() and all(map(part.holds, parts))):
            # After a reconnect the broker does not know what it had left out of a batch.
            self.deeds.plainly[read_of(held)] = None
        self.history.counts["acknowledged while the rest of a batch came"] += bool(parts)
        return await self._come_anew(client, consumer)

    async def _soon(self, consumer: Any, messages: list[Any]) -> None:
        await self.pause(0.05)
        for message in messages:
            self.deeds.plainly[read_of(message)] = None
            await consumer.acknowledge(message)

    async def _meanwhile(self, client: Any, consumer: Any) -> None:
        for _ in range(self.rng.randint(0, 2)):
            move = self.rng.choice((self._receive, self._plainly, self._again))
            await move(client, consumer)
            await self.pause(0.05)


class Mixing(Feature):
    name = "mixed acknowledgements"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, topics=(*scenario.topics, "mixed"), batching=True)

    def begin(self) -> None:
        common = self.world, self.history
        self.deeds = Deeds()
        kind, topic = self.rng.choice(KINDS), self.rng.choice(TOPICS)
        self.mixers = [
            Mixer(*common, f"mixer-{number}", topic=topic, kind=kind, deeds=self.deeds)
            for number in range(1 if kind == "Exclusive" else self.rng.randint(1, 2))
        ]
        self.simulation.others += self.mixers
        self.simulation.producers.append(
            TxnProducer(*common, "mixed", topics=["mixed", topic], count=6, batching=True)
        )

    def _members(self) -> int:
        """Includes consumers of silent connections, which the broker has not noticed yet."""
        first = self.mixers[0]
        found = self.broker.topics.serving(TopicName.parse(first.topic))
        subscription = None if found is None else found.subscriptions.get(first.subscription)
        return 0 if subscription is None else len(subscription.consumers)

    def account(self, logs: Logs) -> list[str]:
        self.simulation.wait(lambda: not self._members(), "the end of those who mix")
        left = dict.fromkeys(self.simulation.left_on_subscription(self.mixers[0]))
        held = [(txn, read) for txn, reads in self.deeds.txns for read in reads]
        committed = {read for txn, read in held if txn.committed}
        perhaps = {*self.deeds.plainly, *(r for txn, r in held if not txn.surely_aborted)}
        log = [
            read for t in self.simulation.partitions_of([self.mixers[0].topic]) for read in logs[t]
        ]
        return [
            *(f"ACKNOWLEDGEMENT LOST: {r} is delivered again" for r in left if r in committed),
            *(
                f"CURSOR AHEAD: {read} was acknowledged by nobody and is not delivered"
                for read in log
                if read not in perhaps and read not in left
            ),
        ]


FEATURES: Final = (Mixing,)
