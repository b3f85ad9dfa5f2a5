"""Stream consumers that outnumber the segments of a scalable topic come and go.

Each key has one consumer at a time: a message comes once everything before it with the same key is
acknowledged, or to the consumer that has that, too. Meanwhile segments are split and rebucketed,
and the broker crashes.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from checks.history import Logs, Outcome, Sent
from clients.admin import REFUSALS, Unanswered, ask
from clients.plain import Process, receive_one, value_of
from clients.transacting import FAILURES
from sim_broker import BrokerProcess

from features.feature import Feature, half_way
from pybroker.base.names import any_topic
from pybroker.broker.topics import Topics
from pybroker.client.options import InitialPosition

NAME: Final = any_topic("topic://public/default/shared")
GROUP: Final = "group"
KEYS: Final = 12
CRASH_CHANCE: Final = 0.2
TURN_S: Final = 8.0
MOST_ACTIVE: Final = 2


@dataclass(slots=True)
class Order:
    """What was sent, by writer and key, and who has what of it."""

    sent: dict[str, list[Sent]] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)  # perhaps
    violations: list[str] = field(default_factory=list)

    def received(self, value: str, has: set[str], who: str) -> None:
        """`has`: all that this consumer has received."""
        has.add(value)
        for sent in self.sent[_stream(value)]:
            if sent.value == value:
                return
            alone = sent.value in self.acknowledged or sent.value in has
            if sent.outcome is Outcome.DONE and not alone:
                self.violations.append(f"KEY ORDER: {who} got {value} before {sent.value} was done")

    def is_done(self) -> bool:
        return all(
            sent.value in self.acknowledged
            for stream in self.sent.values()
            for sent in stream
            if sent.outcome is Outcome.DONE
        )


def _stream(value: str) -> str:
    return value.rpartition("/")[0]


class Writer(Process):
    """Waits for each receipt. Whatever fails is not sent again."""

    def __init__(self, *args: Any, count: int, order: Order) -> None:
        super().__init__(*args)
        self.left = count
        self.order = order

    async def work(self, client: Any) -> None:
        producer = await client.create_producer(
            str(NAME), batching_enabled=self.rng.random() < 0.5, batching_max_publish_delay_ms=1
        )
        while self.left > 0:
            self.left -= 1
            key = f"key-{self.rng.randrange(KEYS)}"
            value = f"{self.name}/{self.incarnation}/{key}/{self.left}"
            sent = Sent(value, str(NAME), self.name, self.left)
            self.order.sent.setdefault(_stream(value), []).append(sent)
            await self.send(producer, sent, partition_key=key)
            await self.pause(0.2)
        await producer.close()


class Changer(Process):
    """Splits, merges and rebuckets, sometimes while the broker crashes."""

    def __init__(self, *args: Any, broker: BrokerProcess) -> None:
        super().__init__(*args)
        self.broker = broker
        self.left = self.rng.choice((0, 0, 1, 3))

    async def work(self, client: Any) -> None:
        while self.left > 0:
            self.left -= 1
            await self.pause(15.0)
            crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
            try:
                await ask(self.broker, self._change, crash)
            except (Unanswered, *REFUSALS) as why:
                self.note(f"was not answered: {why}")

    async def _change(self, topics: Topics) -> None:
        active = (await topics.scalable.settled(NAME)).active
        one, what = self.rng.choice(active), self.rng.choice(("split", "merge", "rebucket"))
        self.note(f"{what} {one.id}")
        if what == "split" and len(active) < MOST_ACTIVE:
            await topics.scalable.split(NAME, one.id)
        elif what == "merge" and len(active) > 1:
            await topics.scalable.merge(NAME, active[0].id, active[1].id)
        else:
            await topics.scalable.rebucket(NAME, one.id, self.rng.choice((2, 4, 7)))
        self.history.counts["shared segments changed"] += 1


class Member(Process):
    """Consumes for a while, leaves, and comes again."""

    def __init__(self, *args: Any, order: Order) -> None:
        super().__init__(*args)
        self.order = order

    async def work(self, client: Any) -> None:
        while not self.stopping:
            consumer = await client.create_stream_consumer(
                str(NAME),
                GROUP,
                consumer_name=self.name,
                initial_position=InitialPosition.Earliest,
                receiver_queue_size=self.rng.choice((1, 3, 100)),
            )
            try:
                await self._take_part(consumer)
            except FAILURES as why:
                self.note(f"comes again: {why!r}")
            await consumer.close()
            await self.pause(2.0)

    async def _take_part(self, consumer: Any) -> None:
        until_s, has = self.world.now + TURN_S * self.rng.random(), set[str]()
        held: list[Any] = []
        while self.world.now < until_s and not self.stopping:
            message = await receive_one(consumer, 300)
            if message is not None:
                held.append(message)
                self.order.received(value_of(message), has, self.name)
                self.history.counts["received in shared segments"] += 1
            if held and (message is None or self.rng.random() < 0.3):
                await self.pause(0.5)
                self.order.acknowledged.update(map(value_of, held))
                await consumer.acknowledge_cumulative(held[-1])
                held.clear()


class Sharing(Feature):
    name = "sharing segments"

    def begin(self) -> None:
        self.order = Order()
        common = self.world, self.history
        self.simulation.on_a_fresh_node(self._begin_topic())
        self.simulation.producers += [
            Writer(*common, f"sharing-{number}", count=self.rng.choice((40, 100)), order=self.order)
            for number in range(self.rng.randint(1, 2))
        ]
        self.simulation.producers.append(Changer(*common, "changer", broker=self.broker))
        self.simulation.others += [
            Member(*common, f"member-{number}", order=self.order)
            for number in range(self.rng.randint(2, 4))
        ]

    async def _begin_topic(self) -> None:
        await ask(self.broker, lambda topics: topics.scalable.create(NAME))

    def rest(self) -> None:
        self.simulation.wait(self.order.is_done, "a group, which did not get everything")

    def account(self, logs: Logs) -> list[str]:
        return self.order.violations


FEATURES: Final = (Sharing,)
