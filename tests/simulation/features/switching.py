"""A topic's deduplication is switched on and off while producers of one name send repeatedly.

Duplicates may be stored while it is off. Whether it is on or off, every message is answered, and
each message with a valid receipt exists. A producer that sets its own sequence ids goes back to
earlier ones. A producer whose client sets them begins with the id that the broker returns, which is
0 while deduplication is off.
"""

import asyncio
import random
from dataclasses import dataclass, replace
from typing import Any, Final

from checks.history import Logs, Outcome, Read, Txn
from clients.admin import REFUSALS, Unanswered, ask
from clients.plain import Process, read_of, receive_one, subscribe
from clients.transacting import FAILURES, Transacting
from sim_broker import BrokerProcess
from sim_scenario import Scenario

from features.copying import Copy, Numbered
from features.feature import Feature, half_way
from pybroker.base.names import TopicName
from pybroker.broker.policies.table import DEDUPLICATION
from pybroker.broker.topics import Topics
from pybroker.client.errors import PulsarException

TOPIC: Final = "persistent://public/default/switched"
SUBSCRIPTION: Final = "collector"
FATES: Final = ("commit", "commit", "abort", "leave")


class Switcher(Process):
    def __init__(self, *args: Any, broker: BrokerProcess) -> None:
        super().__init__(*args)
        self.broker = broker
        self.left = self.rng.randint(1, 8)

    async def work(self, client: Any) -> None:
        name = TopicName.parse(TOPIC)
        while self.left:
            await self.pause(3.0)
            value = self.rng.choice((True, True, False, False, None))
            trims, waits = self.rng.random() < 0.7, self.rng.random() < 0.7

            async def switch(
                topics: Topics, value: bool | None = value, t: bool = trims, w: bool = waits
            ) -> None:
                if t and (topic := await topics.get(name)) is not None:
                    await topic.ledger.trim()
                await topics.policies.set_for_topic(name, DEDUPLICATION, value)
                if w:
                    await topics.following.told()

            crash = half_way(self.rng) if self.rng.random() < 0.1 else None
            try:
                await ask(self.broker, switch, crash)
            except (Unanswered, *REFUSALS) as why:
                self.note(f"switches to {value}: {why!r}")
                continue
            self.note(f"deduplication is {value}")
            self.history.counts["deduplication switched"] += 1
            self.left -= 1


class Collector(Process):
    """Records what it receives, and lets the log be trimmed."""

    def __init__(self, *args: Any, topic: str) -> None:
        super().__init__(*args)
        self.topic = topic
        self.subscription = SUBSCRIPTION
        self.kind = "Failover"
        self.reads: dict[Read, None] = {}

    async def work(self, client: Any) -> None:
        consumer = await subscribe(self, client, self.topic, self.subscription, self.kind)
        while not self.stopping:
            message = await receive_one(consumer)
            if message is None:
                continue
            self.reads[read_of(message)] = None
            if self.rng.random() < 0.5:
                await consumer.acknowledge_cumulative(message)
        await consumer.close()


class Repeater(Transacting):
    """Sends the next number once the previous one is surely stored; sometimes goes back.

    A copy waits for the end of an open transaction that holds its number.
    """

    healed = False

    def __init__(self, *args: Any, count: int) -> None:
        super().__init__(*args)
        self.messages = [Numbered(number, f"{self.name}/{number}") for number in range(count)]
        self.next = 0

    async def work(self, client: Any) -> None:
        producer = await client.create_producer(TOPIC, producer_name=self.name)
        while self.next < len(self.messages):
            if not self.healed and self.rng.random() < 0.3:
                since = self.rng.randint(max(0, self.next - 4), self.next)
                for message in self.messages[since : self.next]:
                    await self._send_copy(client, producer, message)
            message = self.messages[self.next]
            await self._send_copy(client, producer, message)
            if any(copy.promised for copy in message.copies):
                self.next += 1
            await self.pause(0.5)
        await producer.close()

    async def _send_copy(self, client: Any, producer: Any, message: Numbered) -> None:
        txn, record = await self.begin(client) if self.rng.random() < 0.4 else (None, None)
        copy = Copy(record)
        message.copies.append(copy)
        data = message.value.encode() + b"|" + bytes(self.rng.choice((0, 300)))
        try:
            await producer.send(data, txn=txn, sequence_id=message.number)
        except FAILURES as error:
            self.note(f"copy of {message.value} in {record and record.name}: {error!r}")
            if record is not None:
                await self.abort(txn, record)
            raise
        copy.outcome = Outcome.DONE
        if record is not None:
            await self._end(txn, record)

    async def _end(self, txn: Any, record: Txn) -> None:
        fate = self.rng.choice(FATES)
        if fate == "commit":
            await self.commit(txn, record)
        elif fate == "abort":
            await self.abort(txn, record)


@dataclass(slots=True)
class Said:
    value: str
    copy: Copy
    excused: bool = False


class Beginner(Transacting):
    """Sends each value once; its client derives the sequence ids from the broker's answer.

    The first message of a life may be taken for one of an earlier life while that one is in flight:
    the broker cannot know yet that the ids start again. So the first message is sent alone, and the
    life ends if the broker calls it a duplicate. In commit order, transactions of an earlier life
    must not be open either, because recovery reads waiting messages after the log.
    """

    def __init__(self, *args: Any, count: int, batching: bool, settles: bool) -> None:
        super().__init__(*args)
        self.settles = settles
        self.left = count
        self.batching = batching
        self.said: list[Said] = []

    async def work(self, client: Any) -> None:
        if self.settles:
            await self.settle_the_last(client)
        while self.left > 0:
            producer = await client.create_producer(
                TOPIC, producer_name=self.name, batching_enabled=self.batching
            )
            await self._send_group(client, producer, 1, first=True)
            while self.left > 0 and self.rng.random() < 0.9:
                await self._send_group(client, producer, self.rng.randint(1, 5))
                await self.pause(0.7)
            await producer.close()

    async def _send_group(
        self, client: Any, producer: Any, count: int, first: bool = False
    ) -> None:
        txn, record = await self.begin(client) if self.rng.random() < 0.3 else (None, None)
        sends = [self._send_one(producer, txn, record, first) for _ in range(count)]
        results = await asyncio.gather(*sends, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            if record is not None:
                await self.abort(txn, record)
            raise failures[0]
        if record is not None:
            await self.end(client, txn, record)

    async def _send_one(self, producer: Any, txn: Any, record: Txn | None, first: bool) -> None:
        self.left -= 1
        said = Said(f"{self.name}/{len(self.said)}", Copy(record))
        self.said.append(said)
        data = said.value.encode() + b"|" + bytes(self.rng.choice((0, 300)))
        message_id = await producer.send(data, txn=txn)
        said.copy.outcome = Outcome.DONE
        if first and message_id.entry_id() < 0:
            said.excused = True
            self.history.counts["first messages taken for copies"] += 1
            raise PulsarException(f"{said.value} was taken for an earlier life's")


class Switching(Feature):
    name = "switched deduplication"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        scenario = replace(scenario, guards=(*scenario.guards, (TOPIC, SUBSCRIPTION)))
        if rng.random() < 0.3:
            return scenario
        return replace(scenario, retention=0, max_entries_per_ledger=rng.choice((3, 8)))

    def begin(self) -> None:
        common = self.world, self.history
        self.collector = Collector(*common, "collector", topic=TOPIC)
        self.repeaters = [
            Repeater(*common, f"repeater-{number}", count=self.rng.choice((4, 8, 16)))
            for number in range(self.rng.randint(1, 2))
        ]
        batching = self.simulation.scenario.batching
        settles = "commit order" in self.simulation.enabled
        self.beginners = [
            Beginner(
                *common,
                f"beginner-{n}",
                count=self.rng.choice((10, 40)),
                batching=batching,
                settles=settles,
            )
            for n in range(self.rng.randint(1, 2))
        ]
        switcher = Switcher(*common, "switcher", broker=self.broker)
        self.simulation.others.append(self.collector)
        self.simulation.producers += [*self.repeaters, *self.beginners, switcher]

    def heal(self) -> None:
        for repeater in self.repeaters:
            repeater.healed = True

    def account(self, logs: Logs) -> list[str]:
        left = self.simulation.left_on_subscription(self.collector)
        visible = {read.value for read in (*self.collector.reads, *left)}
        said = [(m.value, m.copies) for each in self.repeaters for m in each.messages]
        said += [(s.value, [s.copy]) for each in self.beginners for s in each.said if not s.excused]
        found = []
        for value, copies in said:
            if value in visible and not any(copy.possible for copy in copies):
                found.append(f"ABORTED COPY: {value} was delivered")
            elif value not in visible and any(copy.promised for copy in copies):
                found.append(f"LOST COPY: {value} was acknowledged, and was never delivered")
        return found


FEATURES: Final = (Switching,)
