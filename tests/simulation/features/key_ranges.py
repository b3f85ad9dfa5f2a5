"""Readers, and Exclusive consumers that alternate on one subscription, with ranges of the keys.

The ranges cover all keys, and each ends at the slot of a used key. A reader receives exactly the
messages of its keys, in order; so exactly one reader receives each message. Messages outside a
consumer's range stay for later consumers, whatever transactions held or gave back meanwhile.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from checks.history import Logs, Read, Txn
from clients.plain import Process, read_of, receive_one
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.base.names import TopicName
from pybroker.broker.dispatch.hash_ring import RING_SIZE, slot_of
from pybroker.client import SubscriptionMode, aio

TOPIC: Final = "persistent://public/default/ranged"
SUBSCRIPTION: Final = "by-turns"
KEYS: Final = 12
TURN_S: Final = 3.0
Range = tuple[int, int]  # of slots, both inclusive


def key_of(number: int) -> str:
    return f"key-{number % KEYS}"


def slot_in(read: Read) -> int:
    return slot_of(key_of(int(read.value.rpartition("/")[2])).encode())


def is_in(read: Read, slots: Range) -> bool:
    return slots[0] <= slot_in(read) <= slots[1]


def options(slots: Range, queue: int) -> dict[str, Any]:
    policy = aio.ConsumerKeySharedPolicy(aio.KeySharedMode.Sticky, sticky_ranges=(slots,))
    return {
        "consumer_type": aio.ConsumerType.Exclusive,
        "initial_position": aio.InitialPosition.Earliest,
        "receiver_queue_size": queue,
        "key_shared_policy": policy,
    }


class KeyedWriter(Transacting):
    """Sends each number once; the number determines the key."""

    def __init__(self, *args: Any, count: int) -> None:
        super().__init__(*args)
        self.left = count

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producer = await client.create_producer(TOPIC, batching_enabled=False)
        while self.left > 0:
            await self._write_some(client, producer)
            await self.pause(0.4)

    async def _write_some(self, client: Any, producer: Any) -> None:
        txn, record = await self.begin(client) if self.rng.random() < 0.5 else (None, None)
        try:
            for _ in range(self.rng.randint(1, 6)):
                self.left -= 1
                data = f"{self.name}/{self.left}|".encode()
                await producer.send(data, txn=txn, partition_key=key_of(self.left))
        except FAILURES:
            if txn is not None:
                await self.abort(txn, record)
            raise
        if txn is not None:
            await self.pause(1.0)
            await self.end(client, txn, record)


class RangeReader(Process):
    """Reads from the first message on, again in each life."""

    def __init__(self, *args: Any, slots: Range) -> None:
        super().__init__(*args)
        self.slots = slots
        self.lives: list[list[Read]] = []

    async def work(self, client: Any) -> None:
        reads: list[Read] = []
        self.lives.append(reads)
        consumer = await client.subscribe(
            TOPIC,
            f"{self.name}.{self.incarnation}",
            subscription_mode=SubscriptionMode.NonDurable,
            **options(self.slots, self.rng.choice((1, 3, 100))),
        )
        while not self.stopping:
            message = await receive_one(consumer)
            if message is not None:
                reads.append(read_of(message))
        await consumer.close()

    def violations(self, log: list[Read]) -> list[str]:
        mine = [read for read in log if is_in(read, self.slots)]
        return [
            f"WRONG KEYS: {self.name} of {self.slots} was handed {[r.value for r in reads]} "
            f"instead of {[r.value for r in mine[: len(reads)]]}"
            for reads in self.lives
            if reads != mine[: len(reads)]
        ]

    def has_all(self, log: list[Read]) -> bool:
        return len(self.lives[-1]) >= sum(is_in(read, self.slots) for read in log)


@dataclass(slots=True)
class Turns:
    """What all consumers of the subscription did, in all lives."""

    handed: dict[Read, None] = field(default_factory=dict)
    wrongly: list[str] = field(default_factory=list)
    plainly: dict[Read, None] = field(default_factory=dict)  # perhaps
    txns: list[tuple[Txn, list[Read]]] = field(default_factory=list)


class TurnTaker(Transacting):
    """Subscribes for a while with a random range, again and again."""

    topic, subscription, kind = TOPIC, SUBSCRIPTION, "Exclusive"

    def __init__(self, *args: Any, parts: list[Range], turns: Turns) -> None:
        super().__init__(*args)
        self.parts = parts
        self.turns = turns

    async def work(self, client: Any) -> None:
        while not self.stopping:
            slots = self.rng.choice(self.parts)
            queue = self.rng.choice((1, 3, 100))
            consumer = await client.subscribe(TOPIC, SUBSCRIPTION, **options(slots, queue))
            until_s = self.world.now + TURN_S * self.rng.random()
            while self.world.now < until_s and not self.stopping:
                await self._receive_some(client, consumer, slots)
            await consumer.close()

    async def _receive_some(self, client: Any, consumer: Any, slots: Range) -> None:
        messages = []
        for _ in range(self.rng.randint(1, 4)):
            message = await receive_one(consumer, 200)
            if message is not None:
                messages.append(message)
                self._note(read_of(message), slots)
        if not messages:
            return
        if self.rng.random() < 0.5:
            self.turns.plainly.update((read_of(message), None) for message in messages)
            for message in messages:
                await consumer.acknowledge(message)
            return
        txn, record = await self.begin(client)
        self.turns.txns.append((record, [read_of(message) for message in messages]))
        try:
            for message in messages:
                await consumer.acknowledge(message, txn=txn)
        except FAILURES:
            await self.abort(txn, record)
            raise
        await self.end(client, txn, record)

    def _note(self, read: Read, slots: Range) -> None:
        self.turns.handed[read] = None
        if not is_in(read, slots):
            self.turns.wrongly.append(f"WRONG KEYS: {slots} was handed {read}")


class KeyRanges(Feature):
    name = "key ranges"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: Random) -> Scenario:
        return replace(scenario, guards=(*scenario.guards, (TOPIC, "guard")))

    def begin(self) -> None:
        common = self.world, self.history
        slots = sorted(slot_of(key_of(number).encode()) for number in range(KEYS))
        ends = sorted(self.rng.sample(slots[:-1], self.rng.randint(1, 2)))
        parts = list(zip([0, *(end + 1 for end in ends)], [*ends, RING_SIZE - 1], strict=True))
        self.turns = Turns()
        self.readers = [
            RangeReader(*common, f"range-reader-{number}", slots=part)
            for number, part in enumerate(parts)
        ]
        self.turn_taker = TurnTaker(*common, "turn-taker", parts=parts, turns=self.turns)
        self.simulation.others += [*self.readers, self.turn_taker]
        self.simulation.producers += [
            KeyedWriter(*common, f"keyed-{number}", count=self.rng.choice((15, 40)))
            for number in range(self.rng.randint(1, 2))
        ]

    def rest(self) -> None:
        (log,) = self.simulation.read_all([TOPIC]).values()
        for reader in self.readers:
            self.simulation.wait(
                lambda reader=reader: reader.has_all(log),
                f"{reader.name}, which was not handed everything",
            )
        self.simulation.wait(
            lambda: all(read in self.turns.handed for read in log),
            f"{self.turn_taker.name}, which was not handed everything",
        )

    def account(self, logs: Logs) -> list[str]:
        (log,) = self.simulation.read_all([TOPIC]).values()
        self.simulation.wait(lambda: not self._members(), "the end of the consumers")
        left = dict.fromkeys(self.simulation.left_on_subscription(self.turn_taker))
        perhaps = dict(self.turns.plainly)
        committed: dict[Read, None] = {}
        for txn, reads in self.turns.txns:
            if txn.committed:
                committed.update(dict.fromkeys(reads))
            if not txn.surely_aborted:
                perhaps.update(dict.fromkeys(reads))
        return [
            *(text for reader in self.readers for text in reader.violations(log)),
            *self.turns.wrongly,
            *(f"ACKNOWLEDGEMENT LOST: {r} is delivered again" for r in left if r in committed),
            *(
                f"CURSOR AHEAD: {read} was acknowledged by nobody and is gone"
                for read in log
                if read not in perhaps and read not in left
            ),
        ]

    def _members(self) -> int:
        topic = self.broker.topics.serving(TopicName.parse(TOPIC))
        subscription = None if topic is None else topic.subscriptions.get(SUBSCRIPTION)
        return 0 if subscription is None else len(subscription.consumers)


FEATURES: Final = (KeyRanges,)
