"""A producer that returns when all records of its last transaction may be gone.

Deduplication is switched off while a transaction holds its message. The transaction ends, and the
topic is truncated along with the marker. When deduplication is on again, the producer resends its
message, and sends others. It is unknown whether the first was stored, so it may count as a
duplicate or not; but each message is answered.
"""

from dataclasses import replace
from random import Random
from typing import Any, Final

from checks.history import Logs, Outcome, Sent
from clients.admin import REFUSALS, Unanswered, ask
from clients.transacting import FAILURES, Transacting
from sim_broker import BrokerProcess
from sim_scenario import Scenario

from features.feature import Feature, half_way
from pybroker.base.names import TopicName
from pybroker.broker.persistent.truncation import truncate
from pybroker.broker.policies.table import DEDUPLICATION
from pybroker.broker.topics import Topics

TOPIC: Final = "persistent://public/default/returned"
NAME: Final = TopicName.parse(TOPIC)
CRASH_CHANCE: Final = 0.1


async def _switch_on(topics: Topics) -> None:
    await _switch(topics, True)


async def _switch_off(topics: Topics) -> None:
    await _switch(topics, False)


async def _switch(topics: Topics, on: bool) -> None:
    await topics.policies.set_for_topic(NAME, DEDUPLICATION, on)
    await topics.following.told()


async def _truncate(topics: Topics) -> None:
    topic: Any = await topics.get(NAME, create=True)
    await truncate(topic)


class Returner(Transacting):
    """Each round uses new numbers, so a duplicate can only be of this round's message."""

    def __init__(self, *args: Any, broker: BrokerProcess) -> None:
        super().__init__(*args)
        self.broker = broker
        self.rounds = self.rng.randint(1, 4)
        self.number = 0
        self.is_gone = False  # it is trying to return, in one life after another
        self.last_of_all: list[Sent] = []  # sent when no transaction was open: these exist

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        while self.rounds:
            if not self.is_gone:
                await self._go(client)
                self.is_gone = True
            await self._return(client)
            self.is_gone = False
            self.rounds -= 1

    async def _go(self, client: Any) -> None:
        self.number += 10
        await self._ask(_switch_on)
        txn, record = await self.begin(client)
        producer = await client.create_producer(TOPIC, producer_name=self.name)
        try:
            for number in range(self.rng.randint(1, 6)):
                await producer.send(b"held", txn=txn, sequence_id=self.number + number)
            await producer.close()
        except FAILURES:
            await self.abort(txn, record)
            raise
        if self.rng.random() < 0.9:
            await self._ask(_switch_off)
        await (self.commit if self.rng.random() < 0.5 else self.abort)(txn, record)
        if self.rng.random() < 0.8:
            await self._ask(_truncate)
        await self._ask(_switch_on)

    async def _return(self, client: Any) -> None:
        producer = await client.create_producer(TOPIC, producer_name=self.name)
        await producer.send(b"again", sequence_id=self.number)
        number = self.number + 9
        sent = Sent(f"{self.name}/{number}", TOPIC, self.name, number)
        await producer.send(sent.value.encode(), sequence_id=number)
        sent.outcome = Outcome.DONE
        self.last_of_all = [sent]
        self.history.counts["returned to a topic"] += 1
        await producer.close()

    async def _ask(self, work: Any) -> None:
        while True:
            crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
            try:
                await ask(self.broker, work, crash)
            except (Unanswered, *REFUSALS) as why:
                self.note(f"{work.__name__}: {why!r}")
                await self.pause(1.0)
            else:
                return


class Returning(Feature):
    name = "returning producers"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: Random) -> Scenario:
        return replace(scenario, guards=(*scenario.guards, (TOPIC, "guard")))

    def begin(self) -> None:
        self.returner = Returner(self.world, self.history, "returner", broker=self.broker)
        self.simulation.producers.append(self.returner)

    def account(self, logs: Logs) -> list[str]:
        """Messages published when no transaction was open, and not truncated since."""
        there = {read.value for read in self.simulation.read_all([TOPIC])[TOPIC]}
        return [
            f"LOSS: {sent.value} was new, and is not in {TOPIC}"
            for sent in self.returner.last_of_all
            if sent.value not in there
        ]


FEATURES: Final = (Returning,)
