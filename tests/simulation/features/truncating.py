"""A topic that is truncated while producers write to it and the broker crashes in the middle.

Messages that were readable when a truncation began are gone when it was answered. Messages of open
transactions stay, and so do later ones: an unread subscription must still receive them. At rest a
last truncation leaves one empty ledger, and deduplication still knows the deleted messages.
"""

import random
from dataclasses import dataclass, replace
from math import inf
from types import SimpleNamespace
from typing import Any, Final

from checks.history import Logs, Outcome, Read, Sent, Txn
from clients.admin import REFUSALS, Unanswered, ask
from clients.plain import Process
from clients.transacting import FAILURES, Transacting
from sim_broker import BrokerProcess
from sim_scenario import Scenario

from features.feature import Feature, half_way
from features.switching import Collector
from pybroker.base.names import TopicName
from pybroker.broker.persistent.truncation import truncate
from pybroker.broker.topics import Topics

NAME: Final = "truncated"
TOPIC: Final = f"persistent://public/default/{NAME}"
KEEPER: Final = "keeper"  # it has no reader
COLLECTOR: Final = "collector"
CRASH_CHANCE: Final = 0.2
Place = tuple[int, int]


@dataclass(slots=True)
class Truncation:
    incarnation: int  # of the broker
    before: Place | None = None  # the readable end of the topic when it began
    after: Place | None = None  # the readable end when it was answered
    ended_s: float = inf


@dataclass(slots=True)
class Written:
    sent: Sent
    asked_s: float
    place: Place | None = None  # its position, as the broker answered


class Author(Transacting):
    """Sends each number once, under its own name."""

    def __init__(self, *args: Any, count: int, knows_places: bool) -> None:
        super().__init__(*args)
        self.left = count
        self.knows_places = knows_places  # of messages in transactions
        self.written: list[Written] = []
        self.commit_asked_s: dict[Txn, float] = {}

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producer = await client.create_producer(
            TOPIC, producer_name=self.name, batching_enabled=False
        )
        while self.left > 0:
            await self._write_some(client, producer)
            await self.pause(0.3)

    async def _write_some(self, client: Any, producer: Any) -> None:
        txn, record = await self.begin(client) if self.rng.random() < 0.5 else (None, None)
        try:
            for _ in range(self.rng.randint(1, 4)):
                self.left -= 1
                await self._write(producer, txn, record)
                await self.pause(0.2)
        except FAILURES:
            if txn is not None:
                await self.abort(txn, record)
            raise
        if txn is not None:
            await self.pause(2.0)
            await self.end(client, txn, record)

    async def _write(self, producer: Any, txn: Any, record: Txn | None) -> None:
        number = len(self.written)
        sent = Sent(f"{self.name}/{number}", TOPIC, self.name, number, txn=record)
        self.written.append(Written(sent, self.world.now))
        data = sent.value.encode() + b"|" + bytes(self.rng.choice((0, 300)))
        message_id = await producer.send(data, txn=txn, sequence_id=number)
        sent.outcome = Outcome.DONE
        if message_id.entry_id() < 0:
            return  # a duplicate: it is stored somewhere
        if txn is None or self.knows_places:
            self.written[-1].place = message_id.order_key[:2]

    async def commit(self, txn: Any, record: Txn) -> None:
        self.commit_asked_s.setdefault(record, self.world.now)
        await super().commit(txn, record)

    def readable_since_s(self, written: Written) -> float:
        """The earliest time at which it may have been readable."""
        txn = written.sent.txn
        return written.asked_s if txn is None else self.commit_asked_s.get(txn, inf)


class Truncator(Process):
    def __init__(self, *args: Any, broker: BrokerProcess) -> None:
        super().__init__(*args)
        self.broker = broker
        self.left = self.rng.randint(1, 6)
        self.done: list[Truncation] = []

    async def work(self, client: Any) -> None:
        while self.left:
            await self.pause(4.0)
            self.left -= 1
            truncation = Truncation(self.broker.incarnation)
            crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
            try:
                await ask(
                    self.broker, lambda topics, t=truncation: self._truncate(topics, t), crash
                )
            except (Unanswered, *REFUSALS) as why:
                self.note(f"was not answered: {why!r}")

    async def _truncate(self, topics: Topics, truncation: Truncation) -> None:
        """Runs on the broker, which may die during it."""
        topic: Any = await topics.get(TopicName.parse(TOPIC))
        self.done.append(truncation)
        self.history.counts["truncations"] += 1
        before = topic.max_read_position
        try:
            await truncate(topic)
            truncation.before, truncation.after = before, topic.max_read_position
            self.note(f"truncated {before} to {topic.max_read_position}")
        finally:
            truncation.ended_s = self.world.now

    def the_broker_serves(self) -> None:
        for truncation in self.done:
            if truncation.incarnation < self.broker.incarnation and truncation.ended_s == inf:
                truncation.ended_s = self.world.now


class Truncating(Feature):
    name = "truncating"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        guards = (*scenario.guards, (TOPIC, KEEPER), (TOPIC, COLLECTOR))
        return replace(scenario, guards=guards)

    def begin(self) -> None:
        common = self.world, self.history
        knows_places = "commit order" not in self.simulation.enabled
        self.authors = [
            Author(
                *common,
                f"author-{number}",
                count=self.rng.choice((10, 30)),
                knows_places=knows_places,
            )
            for number in range(self.rng.randint(1, 2))
        ]
        self.truncator = Truncator(*common, "truncator", broker=self.broker)
        self.broker.on_serving.append(self.truncator.the_broker_serves)
        self.simulation.producers += [*self.authors, self.truncator]
        self.simulation.others.append(Collector(*common, "truncated-collector", topic=TOPIC))

    def account(self, logs: Logs) -> list[str]:
        self.simulation.read_all([TOPIC])  # otherwise the reader below might give up on a slow disk
        left = self._left()
        found = [*self._lost(left), *self._there_still(left)]
        found += self.simulation.on_a_fresh_node(self._truncated_at_rest())
        return found + [
            f"DUPLICATE: {read} was stored before it was truncated" for read in self._left()
        ]

    def _left(self) -> list[Read]:
        reader = SimpleNamespace(topic=TOPIC, subscription=KEEPER, kind="Shared")
        return self.simulation.left_on_subscription(reader)

    def _lost(self, left: list[Read]) -> list[str]:
        there = {read.value for read in left}
        return [
            f"LOSS: {written.sent.value}, which no truncation could take, is not in {TOPIC}"
            for author in self.authors
            for written in author.written
            if _is_certain(written.sent)
            and written.sent.value not in there
            and all(_spares(t, author, written) for t in self.truncator.done)
        ]

    def _there_still(self, left: list[Read]) -> list[str]:
        sent = {w.sent.value: w.sent for author in self.authors for w in author.written}
        horizon = max((t.before for t in self.truncator.done if t.before), default=(-1, -1))
        found = []
        for read in left:
            txn = sent[read.value].txn
            if read.message_id[:2] <= horizon:
                found.append(f"NOT TRUNCATED: {read} stood before {horizon}")
            if txn is not None and txn.surely_aborted:
                found.append(f"ABORTED READ: {read} of {txn.name}")
        return found

    async def _truncated_at_rest(self) -> list[str]:
        """Truncates at rest: the topic is empty then, and deduplication still knows stored
        messages.
        """

        async def work(topics: Topics) -> list[int]:
            topic: Any = await topics.get(TopicName.parse(TOPIC))
            await truncate(topic)
            return [info.entries for info in topic.ledger.ledgers()]

        entries = await ask(self.broker, work)
        if self.simulation.scenario.deduplication:
            await self._send_again()
        return [] if entries == [0] else [f"KEPT: the ledgers of {TOPIC} have {entries} entries"]

    async def _send_again(self) -> None:
        client = self.simulation.auditor()
        for author in self.authors:
            producer = await client.create_producer(TOPIC, producer_name=author.name)
            for written in author.written:
                if _is_certain(written.sent):
                    data = written.sent.value.encode()
                    await producer.send(data, sequence_id=written.sent.number)
        await client.close()


def _is_certain(sent: Sent) -> bool:
    return sent.outcome is Outcome.DONE and (sent.txn is None or sent.txn.committed)


def _spares(truncation: Truncation, author: Author, written: Written) -> bool:
    if author.readable_since_s(written) > truncation.ended_s:
        return True
    known = written.place is not None and truncation.after is not None
    return known and written.place > truncation.after  # type: ignore[operator]


FEATURES: Final = (Truncating,)
