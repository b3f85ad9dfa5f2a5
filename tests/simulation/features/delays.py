"""Messages that are delivered later, alone and in transactions, to consumers that come and go.

They are on a topic of their own, which everybody else uses too. Nothing is lost over a restart,
nothing comes before its time; order is promised to none of them.
"""

import random
from dataclasses import replace
from typing import Any, ClassVar, Final

from checks.history import Sent, Txn
from clients.plain import PlainConsumer, value_of
from clients.transacting import Transacting
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.simulation.world import SimulatedClock

TOPIC: Final = "delayed"
TICK_MS: Final = 200
KINDS: Final = ("Shared", "KeyShared")
IMPATIENCE: Final = 0.2


class LateProducer(Transacting):
    """Some messages at once, some later, some in transactions that end before or after that."""

    def __init__(self, *args: Any, count: int, times: dict[str, int]) -> None:
        super().__init__(*args)
        self.left = count
        self.times = times

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
            return  # the last of them, once more
        deliver_at = SimulatedClock(self.world).now_ms() + self.rng.choice((-500, 300, 1500, 9000))
        self.times[value] = deliver_at
        # Each has a producer of its own, as far as order is concerned.
        sent = self.history.send(Sent(value, TOPIC, value, 0, txn=record))
        key = f"late-{self.rng.randrange(3)}"
        await self.send(producer, sent, txn, partition_key=key, deliver_at=deliver_at)
        self.history.counts["delayed messages"] += 1


class PunctualConsumer(PlainConsumer):
    times: ClassVar[dict[str, int]]

    async def _answer(self, consumer: Any, message: Any) -> None:
        now_ms, value = SimulatedClock(self.world).now_ms(), value_of(message)
        if self.times and now_ms < self.times.get(value, now_ms):
            early_ms = self.times[value] - now_ms
            self.history.failures.append(f"EARLY: {value} came {early_ms} ms before its time")
        if self.rng.random() < IMPATIENCE:  # it is read again, and acknowledged meanwhile
            consumer.redeliver_unacknowledged_messages()
            await self.pause(0.02)
        await super()._answer(consumer, message)


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
        """A clock that was set back would have everybody wait as long as that."""
        self.broker.clock.offset_ms = max(0, self.broker.clock.offset_ms)

    def begin(self) -> None:
        times: dict[str, int] = {}
        common = self.world, self.history
        for number in range(self.rng.randint(1, 2)):
            count = self.rng.choice((4, 10, 20))
            self.simulation.producers.append(
                LateProducer(*common, f"late-{number}", count=count, times=times)
            )
        kind = self.rng.choice(KINDS)
        for number in range(self.rng.randint(1, 2)):
            consumer = PunctualConsumer(
                *common,
                f"punctual-{number}",
                topic=TOPIC,
                subscription=f"delayed-{kind}",
                kind=kind,
            )
            # When clocks are set, nobody can say what is early.
            consumer.times = {} if "clocks" in self.simulation.enabled else times
            self.simulation.consumers.append(consumer)


FEATURES: Final = (Delays,)
