"""Delayed messages, alone and in transactions, to consumers that come and go.

They have their own topic, which other clients use, too. Nothing is lost over a restart, and no
message comes before its time; their order is not promised. When delayed delivery is switched off,
all messages come at once, including those that waited.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from checks.history import Sent, Txn
from clients.admin import Unanswered, ask
from clients.plain import PlainConsumer, Process, value_of
from clients.transacting import Transacting
from sim_broker import BrokerProcess
from sim_scenario import ACTIVE_S, Scenario

from features.feature import Feature, half_way
from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.policies.table import DELAYED_DELIVERY
from pybroker.broker.topics import Topics
from pybroker.simulation.world import SimulatedClock

TOPIC: Final = "delayed"
TICK_MS: Final = 200
KINDS: Final = ("Shared", "KeyShared")
IMPATIENCE: Final = 0.2
DELAYS_MS: Final = (-500, 300, 1500, 9000)
FAR_MS: Final = 100_000_000  # longer than any seed lasts
CRASH_CHANCE: Final = 0.3


@dataclass(slots=True)
class Due:
    """When each message may come; once `off`, at any time."""

    at_ms: dict[str, int] = field(default_factory=dict)
    off: bool = False

    def early_ms(self, value: str, now_ms: int) -> int:
        return 0 if self.off else self.at_ms.get(value, now_ms) - now_ms


class LateProducer(Transacting):
    """Sends messages due at once, later, or in transactions that end before or after that."""

    def __init__(self, *args: Any, count: int, due: Due, delays_ms: tuple[int, ...]) -> None:
        super().__init__(*args)
        self.left = count
        self.due = due
        self.delays_ms = delays_ms

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producer = await client.create_producer(TOPIC, batching_enabled=False)
        while self.left:
            txn, record = await self._maybe_transaction(client)
            for _ in range(self.rng.randint(1, 4)):
                await self._send_later(producer, txn, record)
            if txn is not None:
                await self.pause(0.5)
                await self.end(client, txn, record)
            await self.pause(0.5)

    async def _maybe_transaction(self, client: Any) -> Any:
        return await self.begin(client) if self.rng.random() < 0.4 else (None, None)

    async def _send_later(self, producer: Any, txn: Any, record: Txn | None) -> None:
        self.left = max(0, self.left - 1)
        value = f"{self.name}/{self.left}"
        if value in self.history.sent:
            return  # the last message was sent already
        deliver_at = SimulatedClock(self.world).now_ms() + self.rng.choice(self.delays_ms)
        self.due.at_ms[value] = deliver_at
        # As far as order is concerned, each message has its own producer.
        sent = self.history.send(Sent(value, TOPIC, value, 0, txn=record))
        key = f"late-{self.rng.randrange(3)}"
        await self.send(producer, sent, txn, partition_key=key, deliver_at=deliver_at)
        self.history.counts["delayed messages"] += 1


class PunctualConsumer(PlainConsumer):
    due: Due | None  # None: unknown

    async def _answer(self, consumer: Any, message: Any) -> None:
        now_ms, value = SimulatedClock(self.world).now_ms(), value_of(message)
        if self.due is not None and (early_ms := self.due.early_ms(value, now_ms)) > 0:
            self.history.failures.append(f"EARLY: {value} came {early_ms} ms before its time")
        if self.rng.random() < IMPATIENCE:  # it is read again, and meanwhile acknowledged
            consumer.redeliver_unacknowledged_messages()
            await self.pause(0.02)
        await super()._answer(consumer, message)


class DelaySwitcher(Process):
    """Switches delayed delivery off, and retries until it is answered."""

    def __init__(self, *args: Any, broker: BrokerProcess, due: Due) -> None:
        super().__init__(*args)
        self.broker, self.due = broker, due
        self.left_s = ACTIVE_S * self.rng.random()

    async def work(self, client: Any) -> None:
        await asyncio.sleep(self.left_s)
        self.left_s = 0.0
        self.due.off = True
        while not await self._is_off():
            await self.pause(1.0)

    async def _is_off(self) -> bool:
        async def switch(topics: Topics) -> None:
            inactive = {"active": False, "tickTime": TICK_MS}
            await topics.policies.set_for_topic(TopicName.parse(TOPIC), DELAYED_DELIVERY, inactive)
            await topics.following.told()

        crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
        try:
            await ask(self.broker, switch, crash)
        except (Unanswered, ManagedLedgerError, TopicNotFound) as why:
            self.note(f"delays are not off yet: {why!r}")
            return False
        self.history.counts["delays switched off"] += 1
        return True


class Delays(Feature):
    name = "delays"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(
            scenario,
            topics=(*scenario.topics, TOPIC),
            delayed_tick_ms=TICK_MS,
            delayed_strict=rng.random() < 0.5,
        )

    def heal(self) -> None:
        """If a clock stayed set back, all consumers would wait that much longer."""
        self.broker.clock.offset_ms = max(0, self.broker.clock.offset_ms)

    def begin(self) -> None:
        due, delays_ms = Due(), DELAYS_MS
        common = self.world, self.history
        counts = [self.rng.choice((4, 10, 20)) for _ in range(self.rng.randint(1, 2))]
        kind = self.rng.choice(KINDS)
        for number in range(self.rng.randint(1, 2)):
            consumer = PunctualConsumer(
                *common,
                f"punctual-{number}",
                topic=TOPIC,
                subscription=f"delayed-{kind}",
                kind=kind,
            )
            # If clocks are set, it is unknown which message is early.
            consumer.due = None if "clocks" in self.simulation.enabled else due
            self.simulation.consumers.append(consumer)
        if self.rng.random() < 0.4:
            delays_ms = (*DELAYS_MS, FAR_MS)
            self.simulation.producers.append(
                DelaySwitcher(*common, "delay-switcher", broker=self.broker, due=due)
            )
        for number, count in enumerate(counts):
            producer = LateProducer(
                *common, f"late-{number}", count=count, due=due, delays_ms=delays_ms
            )
            self.simulation.producers.append(producer)


FEATURES: Final = (Delays,)
