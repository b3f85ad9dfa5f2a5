"""A read_uncommitted subscription: it receives open messages, and keeps no aborted ones.

Hasty consumers acknowledge received messages at once, in their own transactions. Patient ones wait
for the outcome, and acknowledge only committed messages. So a message that was aborted after its
delivery stays unacknowledged, and must not stay in the backlog.
"""

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from checks.history import Logs, Outcome, Read, Txn
from clients.plain import read_of, receive_one, value_of
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.base.names import TopicName
from pybroker.client import aio

TOPIC: Final = "persistent://public/default/isolated"
NAME: Final = TopicName.parse(TOPIC)
SUBSCRIPTION: Final = "early"
KINDS: Final = ("Exclusive", "Failover", "Shared", "KeyShared")


@dataclass(slots=True)
class Known:
    """What the writers know, and what the readers received and acknowledged."""

    written: dict[str, Txn] = field(default_factory=dict)
    aborted_s: dict[Txn, float] = field(default_factory=dict)  # when the abort became known
    truth: set[str] | None = None  # the committed values, known at rest
    handed: set[str] = field(default_factory=set)
    acknowledged: list[tuple[Read, str]] = field(default_factory=list)  # with the transaction

    def hear(self, txn: Txn, now_s: float) -> None:
        if txn.surely_aborted and txn.abort is Outcome.DONE:
            self.aborted_s.setdefault(txn, now_s)

    def is_committed(self, value: str) -> bool:
        return self.written[value].committed or (self.truth is not None and value in self.truth)

    def is_aborted(self, value: str) -> bool:
        known = self.written[value] in self.aborted_s
        return known or (self.truth is not None and value not in self.truth)


class Writer(Transacting):
    def __init__(self, *args: Any, known: Known) -> None:
        super().__init__(*args)
        self.known = known
        self.remaining = self.rng.randint(3, 12)
        self.number = 0

    async def work(self, client: Any) -> None:
        if self.last is not None and self.rng.random() < 0.5:
            _, record = self.last
            await self.settle_the_last(client)
            self.known.hear(record, self.world.now)
        producer = await client.create_producer(
            TOPIC, batching_enabled=self.rng.random() < 0.3, batching_max_messages=3
        )
        while self.remaining and not self.stopping:
            self.remaining -= 1
            await self._transact(client, producer)
            await self.pause(0.5)
        await producer.close()

    async def _transact(self, client: Any, producer: Any) -> None:
        txn, record = await self.begin(client)
        try:
            await asyncio.gather(
                *(self._write(producer, txn, record) for _ in range(self.rng.randint(1, 4)))
            )
        except FAILURES:
            await self.abort(txn, record)
        else:
            await self.pause(1.0)
            if self.rng.random() < 0.4:
                await self.abort(txn, record)
            else:
                await self.end(client, txn, record)
        self.known.hear(record, self.world.now)

    async def _write(self, producer: Any, txn: Any, record: Txn) -> None:
        self.number += 1
        value = f"{self.name}/{self.number}"
        self.known.written[value] = record
        await producer.send(value.encode(), txn=txn, partition_key=f"key-{self.number % 3}")


class EarlyReader(Transacting):
    """One session after another, each with its own consumer."""

    def __init__(self, *args: Any, known: Known, kind: str) -> None:
        super().__init__(*args)
        self.known = known
        self.kind = kind
        self.stays = False  # no session ends any more: a new one would hide stuck messages

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self._session(client)

    async def _session(self, client: Any) -> None:
        since_s, is_patient = self.world.now, self.rng.random() < 0.5
        consumer = await client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            consumer_type=getattr(aio.ConsumerType, self.kind),
            initial_position=aio.InitialPosition.Earliest,
            consumer_name=self.name,
            receiver_queue_size=self.rng.choice((1, 3, 100)),
            isolation_level=aio.IsolationLevel.READ_UNCOMMITTED,
        )
        until_s = since_s + 4 * self.rng.random()
        hands: list[Any] = []
        while not self.stopping and (self.stays or self.world.now < until_s):
            message = await receive_one(consumer, timeout_millis=200)
            if message is not None and self._is_right(message, since_s):
                hands.append(message)
            hands = [each for each in hands if not self.known.is_aborted(value_of(each))]
            ready = [each for each in hands if self._is_ready(each, is_patient)]
            if ready and not await self._take(client, consumer, ready):
                consumer.redeliver_unacknowledged_messages()
                hands = []
            else:
                hands = [each for each in hands if each not in ready]
        await consumer.close()

    def _is_ready(self, message: Any, is_patient: bool) -> bool:
        return not is_patient or self.known.is_committed(value_of(message))

    def _is_right(self, message: Any, since_s: float) -> bool:
        value = value_of(message)
        if value not in self.known.written:
            self.history.failures.append(f"INVENTED: {self.name} was handed {value!r} early")
            return False
        self.known.handed.add(value)
        aborted_s = self.known.aborted_s.get(self.known.written[value], since_s)
        if aborted_s < since_s:
            self.history.failures.append(
                f"ABORTED READ: {self.name}, who came at {since_s:.3f} s, was handed {value}, "
                f"which was aborted at {aborted_s:.3f} s"
            )
        return True

    async def _take(self, client: Any, consumer: Any, ready: list[Any]) -> bool:
        txn, record = await self.begin(client)
        try:
            await asyncio.gather(*(consumer.acknowledge(each, txn=txn) for each in ready))
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            return False
        await self.pause(0.2)
        if not await self.end(client, txn, record):
            return False
        self.known.acknowledged += [(read_of(each), record.name) for each in ready]
        return True


class Isolating(Feature):
    name = "isolation"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: Random) -> Scenario:
        return replace(scenario, guards=(*scenario.guards, (TOPIC, "guard")))

    def begin(self) -> None:
        common, self.known = (self.world, self.history), Known()
        kind = self.rng.choice(KINDS)
        self.readers = [
            EarlyReader(*common, f"early-{number}", known=self.known, kind=kind)
            for number in range(1 if kind == "Exclusive" else self.rng.randint(1, 2))
        ]
        self.simulation.others += self.readers
        for number in range(self.rng.randint(1, 3)):
            writer = Writer(*common, f"isolated-{number}", known=self.known)
            self.simulation.producers.append(writer)

    def heal(self) -> None:
        for reader in self.readers:
            reader.stays = True

    def rest(self) -> None:
        truth = {read.value for read in self.simulation.read_all([TOPIC])[TOPIC]}
        self.known.truth = truth
        wait = self.simulation.wait
        wait(lambda: truth <= self.known.handed, "what was committed to be handed to early readers")
        wait(self._is_through, "the early readers' backlog to go: what was aborted sticks")
        self.history.counts["handed early"] += len(self.known.handed)

    def _is_through(self) -> bool:
        topic: Any = self.broker.topics.serving(NAME) if self.broker.serving else None
        found = None if topic is None else topic.subscriptions.get(SUBSCRIPTION)
        return found is not None and not (found.backlog or found.dispatch.unacked_messages)

    def account(self, logs: Logs) -> list[str]:
        owners: dict[Read, str] = {}
        found = []
        for read, name in self.known.acknowledged:
            if owners.setdefault(read, name) != name:
                found.append(f"ACKNOWLEDGED TWICE: {read} by {owners[read]} and {name}, early")
        return found


FEATURES: Final = (Isolating,)
