"""Processors that die or leave, and successors that continue from the subscription's position.

They acknowledge singly and cumulatively, plainly and in transactions. They leave transactions open,
which end while the successor works. An acknowledgement must not cover a message that its processor
never received, and no two committed transactions may consume the same message.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from checks.history import Logs, Outcome, Read, Txn
from clients.official import Dropping, name_nothing
from clients.plain import read_of, subscribe
from clients.transacting import FAILURES, Transacting, TxnProducer
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.base.names import TopicName
from pybroker.client import Timeout, TransactionConflict

KINDS: Final = ("Failover", "Exclusive")
TOPIC: Final = "inherited"
NAME: Final = TopicName.parse(TOPIC)


@dataclass(slots=True)
class Deeds:
    """What all consumers of a subscription did, in all lives."""

    plainly: dict[Read, None] = field(default_factory=dict)  # perhaps
    txns: list[tuple[Txn, list[Read], bool]] = field(default_factory=list)  # cumulatively?
    # Without what the same consumer had acknowledged before. Only while the broker remembers who
    # was given what: see docs/internals/dispatch.md.
    consumed: list[tuple[Txn, list[Read]]] = field(default_factory=list)
    # Cumulative ones of messages from before a reconnect: it is unknown whether they cover
    # redelivered messages. See docs/internals/dispatch.md.
    ambiguously: list[tuple[Txn | None, tuple[int, int, int]]] = field(default_factory=list)

    # What clients like Java's dropped: see `_log_was_full`.
    dropped: set[Read] = field(default_factory=set)

    def consumed_twice(self) -> list[Read]:
        """The messages that several committed transactions consumed."""
        counts = Counter(read for txn, reads in self.consumed if txn.committed for read in {*reads})
        return [read for read, count in counts.items() if count > 1]

    def may_cover(self, read: Read) -> bool:
        return any(
            read.message_id <= up_to and not (txn is not None and txn.surely_aborted)
            for txn, up_to in self.ambiguously
        )


@dataclass(frozen=True, slots=True)
class Held:
    message: Any
    session: int  # of the client with the broker

    @property
    def order_key(self) -> tuple[int, int, int]:
        key: tuple[int, int, int] = self.message.order_key
        return key


def _session(consumer: Any) -> int:
    return sum(part._intake.session for part in consumer._parts.values())


class Processor(Transacting):
    def __init__(self, *args: Any, kind: str, deeds: Deeds) -> None:
        super().__init__(*args)
        self.topic = TOPIC
        self.kind = kind
        self.subscription = f"inherited-{kind}"
        self.deeds = deeds
        self.held: list[Held] = []  # since reading began, in order of arrival
        self.consumed: set[Read] = set()  # by this consumer, not in transactions that aborted
        self.is_like_java = self.world.stream(f"manners {self.name}").random() < 0.5
        self.dropping = Dropping()
        self.late: tuple[Any, Txn] | None = None  # to end while a successor works
        self.unload: Callable[[], None] | None = None  # set if topics are unloaded
        self.is_remembered: Callable[[], bool] = lambda: False

    async def work(self, client: Any) -> None:
        self.late = None  # belonged to an earlier client
        consumer = await self._take_up(client)
        moves = self._receive, self._plainly, self._in_transaction, self._again
        while not self.stopping:
            (move,) = self.rng.choices(moves, (10, 3, 8, 1))
            leaves = await move(client, consumer)
            await self.pause(0.3)
            if self.late is not None and not leaves and self.rng.random() < 0.3:
                await self._end_late(client)
            if leaves or self.rng.random() < 0.05:
                await consumer.close()
                await self.pause(1.0)
                consumer = await self._take_up(client)
        await consumer.close()

    async def _take_up(self, client: Any) -> Any:
        self.held, self.consumed, self.dropping = [], set(), Dropping()
        self.note("subscribes")
        consumer = await subscribe(self, client, self.topic, self.subscription, self.kind)
        if self.is_like_java:
            name_nothing(consumer)
        return consumer

    async def _receive(self, client: Any, consumer: Any) -> None:
        for _ in range(self.rng.randint(1, 6)):
            try:
                message = await consumer.receive(timeout_millis=100)
            except Timeout:
                return
            if self.is_like_java and self.dropping.drops(message):
                self.note(f"drops {message.order_key}")
                self.history.counts["dropped unseen"] += 1
                self.deeds.dropped.add(read_of(message))
            else:
                self.note(f"received {message.order_key}")
                self.held.append(Held(message, _session(consumer)))

    async def _again(self, client: Any, consumer: Any) -> None:
        self.held = []
        self.note("wants everything again")
        consumer.redeliver_unacknowledged_messages()

    def _covered_by(self, consumer: Any, index: int, txn: Txn | None = None) -> list[Read]:
        """The messages that a cumulative acknowledgement of message number `index` covers."""
        last = self.held[index]
        if last.session != _session(consumer):
            self.deeds.ambiguously.append((txn, last.order_key))
        spoken_of = self.held[: index + 1]
        return [read_of(each.message) for each in spoken_of if each.order_key <= last.order_key]

    async def _plainly(self, client: Any, consumer: Any) -> None:
        if not self.held:
            return
        index = self.rng.randrange(len(self.held))
        if self.rng.random() < 0.5:
            await self._up_to(consumer, index)
        else:
            self.note(f"acknowledges {self.held[index].order_key}")
            self._has_acknowledged([read_of(self.held[index].message)])
            await consumer.acknowledge(self.held[index].message)

    def _has_acknowledged(self, reads: list[Read]) -> None:
        self.deeds.plainly.update(dict.fromkeys(reads))
        self.consumed.update(reads)

    async def _up_to(self, consumer: Any, index: int) -> None:
        last = self.held[index].message
        if self.is_like_java and self.dropping.drops(last):
            return  # nor does it acknowledge an earlier message
        self._has_acknowledged(self._covered_by(consumer, index))
        self.note(f"acknowledges up to {last.order_key}")
        self.dropping.acknowledged_up_to(last)
        await consumer.acknowledge_cumulative(last)

    async def _in_transaction(self, client: Any, consumer: Any) -> bool:
        """True if it leaves. The transaction may still be open then."""
        if not self.held:
            return False
        txn, record = await self.begin(client)
        cumulative = self.rng.random() < 0.5
        lately = range(max(0, len(self.held) - 8), len(self.held))
        if cumulative:
            chosen = [self.rng.choice(lately)]
            reads = self._covered_by(consumer, chosen[0], record)
        else:
            chosen = sorted(self.rng.sample(lately, self.rng.randint(1, min(3, len(lately)))))
            reads = [read_of(self.held[index].message) for index in chosen]
        self.deeds.txns.append((record, reads, cumulative))
        if self.is_remembered():
            fresh = [each for each in reads if each not in self.consumed]
            self.deeds.consumed.append((record, fresh))
        how = "up to " * cumulative
        self.note(f"{record.name}: {how}{[self.held[index].order_key for index in chosen]}")
        self.history.counts["acknowledged by a processor"] += 1
        try:
            for index in chosen:
                message = self.held[index].message
                if cumulative:
                    await consumer.acknowledge_cumulative(message, txn=txn)
                else:
                    await consumer.acknowledge(message, txn=txn)
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            if not isinstance(error, TransactionConflict):
                return True
            await self._again(client, consumer)
            return False
        if self.rng.random() < 0.3:
            self.history.counts["left open for a successor"] += 1
            if self.rng.random() < 0.5:
                self.late = txn, record
            return True
        await self.end(client, txn, record)
        if record.committed:
            self.consumed.update(reads)
        aborted = record.abort is Outcome.DONE
        if aborted and not cumulative:  # these are redelivered
            self.held = [each for each in self.held if read_of(each.message) not in reads]
            await self._acknowledge_over_an_unload(consumer)
        return not (record.committed or aborted)

    async def _end_late(self, client: Any) -> None:
        assert self.late is not None
        (txn, record), self.late = self.late, None
        self.history.counts["ended behind a successor"] += 1
        if self.rng.random() < 0.5:
            await self.end(client, txn, record)
        else:
            await self.abort(txn, record)

    async def _acknowledge_over_an_unload(self, consumer: Any) -> None:
        """Acknowledges everything it holds while disconnected, before a redelivery."""
        if self.unload is None or not self.held or not consumer.is_connected():
            return
        self.unload()
        for _ in range(100):
            if not consumer.is_connected():
                self.note("acknowledges what it has, cut off")
                self.history.counts["acknowledged over an unload"] += 1
                await self._up_to(consumer, len(self.held) - 1)
                return
            await asyncio.sleep(0.003)


class Succession(Feature):
    name = "succession"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        batching = scenario.batching or rng.random() < 0.5
        return replace(scenario, topics=(*scenario.topics, TOPIC), batching=batching)

    def begin(self) -> None:
        common = self.world, self.history
        self.deeds, kind = Deeds(), self.rng.choice(KINDS)
        self.processors = [
            Processor(*common, f"processor-{number}", kind=kind, deeds=self.deeds)
            for number in range(1 if kind == "Exclusive" else 2)
        ]
        if "unloads" in self.simulation.enabled:
            for processor in self.processors:
                processor.unload = self._unload
        else:
            for processor in self.processors:
                processor.is_remembered = lambda: self.broker.incarnation == 1
        self.simulation.others += self.processors
        batching = self.simulation.scenario.batching
        self.simulation.producers.append(
            TxnProducer(*common, "inherited", topics=[TOPIC], count=8, batching=batching)
        )

    def _unload(self) -> None:
        if self.broker.serving and self.broker.topics.serving(NAME) is not None:
            self.count("unloads")
            self.broker.begin(self.broker.topics.unload(NAME), f"unload {NAME}")

    def _members(self) -> int:
        found = self.broker.topics.serving(NAME)
        subscription = None
        if found is not None:
            subscription = found.subscriptions.get(self.processors[0].subscription)
        return 0 if subscription is None else len(subscription.consumers)

    def account(self, logs: Logs) -> list[str]:
        self.simulation.wait(lambda: not self._members(), "the end of the processors")
        left = dict.fromkeys(self.simulation.left_on_subscription(self.processors[0]))
        held = [(txn, read) for txn, reads, _ in self.deeds.txns for read in reads]
        # A consumer that is disconnected, or no longer active, may acknowledge cumulatively what
        # came before. Late messages are then delivered once more.
        committed = {
            read
            for txn, reads, cumulative in self.deeds.txns
            for read in reads
            if txn.committed and not (cumulative and self._was_disturbed)
        }
        perhaps = {*self.deeds.plainly, *(r for txn, r in held if not txn.surely_aborted)}
        ahead = (
            read
            for topic in self.simulation.partitions_of([TOPIC])
            for read in logs[topic]
            # A batch may come in part and then as a whole. An acknowledgement of the whole batch
            # does not say which it means: see docs/internals/dispatch.md.
            if read.message_id[2] < 0
            and read not in perhaps
            and read not in left
            and not self.deeds.may_cover(read)
            and not (read in self.deeds.dropped and self._log_was_full)
        )
        return [
            *(f"ACKNOWLEDGEMENT LOST: {r} is delivered again" for r in left if r in committed),
            *(f"ACKNOWLEDGED TWICE: {r}" for r in self.deeds.consumed_twice()),
            *(f"CURSOR AHEAD: {r}, acknowledged by nobody who got it, is gone" for r in ahead),
        ]

    @property
    def _log_was_full(self) -> bool:
        """Then it may not say that a client acknowledges plainly, and so drops messages."""
        return any(fault.kind == "disk full" for fault in self.simulation.scenario.faults)

    @property
    def _was_disturbed(self) -> bool:
        alone = len(self.processors) == len(self.simulation.features) == 1
        return not alone or bool(self.simulation.scenario.faults)


FEATURES: Final = (Succession,)
