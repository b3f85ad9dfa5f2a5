"""Topics that are used in all ways and then deleted: nothing of them stays, on the disk or in
memory, without any garbage collection.
"""

import gc
import weakref
from dataclasses import dataclass
from typing import Any, Final

from checks.history import Logs
from checks.space import leftovers
from clients.admin import REFUSALS, Unanswered, ask
from clients.plain import Process, receive_one, subscribe
from clients.transacting import FAILURES
from sim_broker import BrokerProcess

from features.feature import Feature, half_way
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.topics import Topics
from pybroker.client.errors import PulsarException

KINDS: Final = ("Exclusive", "Failover", "Shared", "KeyShared")
CRASH_CHANCE: Final = 0.1
# By then the broker has given up a silent connection, and its requests.
UNTIL_FREED_S: Final = 150.0


@dataclass(slots=True)
class Gone:
    topic: TopicName
    incarnation: int  # of the broker
    parts: list[weakref.ref[Any]]


class Visitor(Process):
    def __init__(self, *args: Any, broker: BrokerProcess) -> None:
        super().__init__(*args)
        self.broker = broker
        self.left = self.rng.randint(2, 6)
        self.used = False  # the next topic to delete has been used
        self.gone: list[Gone] = []

    @property
    def topic(self) -> str:
        return f"persistent://public/default/{self.name}-{self.left}"

    async def work(self, client: Any) -> None:
        if self.used:
            await self._delete()
            return
        self.used = True
        try:
            await self._use(client)
        except FAILURES as error:
            self.note(f"uses {self.topic}: {error!r}")
        raise PulsarException("it is deleted when this client has gone")

    async def _use(self, client: Any) -> None:
        kind = self.rng.choice(KINDS)
        consumer = await subscribe(self, client, self.topic, "visitor", kind)
        producer = await client.create_producer(self.topic)
        for number in range(self.rng.randint(1, 12)):
            txn = await client.new_transaction() if self.rng.random() < 0.4 else None
            await producer.send(b"x", txn=txn, partition_key=f"key-{number}")
            if self.rng.random() < 0.7 and (message := await receive_one(consumer, 200)):
                await self._answer(consumer, message, txn)
            if txn is not None and self.rng.random() < 0.9:
                await (txn.commit() if self.rng.random() < 0.6 else txn.abort())

    async def _answer(self, consumer: Any, message: Any, txn: Any) -> None:
        if self.rng.random() < 0.3:
            consumer.negative_acknowledge(message)
        else:
            await consumer.acknowledge(message, txn=txn)

    async def _delete(self) -> None:
        while self.left:
            crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
            try:
                await ask(self.broker, self._delete_there, crash)
            except TopicNotFound:
                self.left -= 1
                self.used = False
                if self.left:
                    raise PulsarException("the next topic is used by a new client") from None
            except (Unanswered, *REFUSALS) as why:
                self.note(f"deletion of {self.topic}: {why!r}")
                await self.pause(1.0)

    async def _delete_there(self, topics: Topics) -> None:
        name = TopicName.parse(self.topic)
        if (topic := topics.serving(name)) is not None:
            parts = [weakref.ref(each) for each in (topic, topic.ledger)]
            self.gone.append(Gone(name, self.broker.incarnation, parts))
        self.history.counts["topics used and deleted"] += 1
        await topics.delete(name, True)


class PassingTopics(Feature):
    name = "deleted topics"

    def begin(self) -> None:
        self.collects_garbage = gc.isenabled()
        gc.disable()  # garbage collection would hide what this looks for
        self.visitors = [
            Visitor(self.world, self.history, f"visitor-{number}", broker=self.broker)
            for number in range(self.rng.randint(1, 2))
        ]
        self.simulation.producers += self.visitors
        self.found: list[str] = []

    def end(self) -> None:
        if self.collects_garbage:
            gc.enable()

    def rest(self) -> None:
        """Runs before the broker is restarted: a dead one keeps everything in this world."""
        self.world.sleep(UNTIL_FREED_S)
        assert self.broker.node is not None
        self.broker.node.forget_what_is_done()
        for visitor in self.visitors:
            for gone in visitor.gone:
                self._look_at(gone)

    def _look_at(self, gone: Gone) -> None:
        if self.broker.disk_had_faults:  # a failed deletion leaves an error that keeps it
            return
        if gone.incarnation != self.broker.incarnation or self.broker.topics.exists(gone.topic):
            return
        self.count("deleted topics looked for in memory")
        there = [type(part()).__name__ for part in gone.parts if part() is not None]
        if there:
            self.found.append(f"NOT FREED: {' and '.join(there)} of {gone.topic}")

    def account(self, logs: Logs) -> list[str]:
        return [*self.found, *leftovers(self.broker)]


FEATURES: Final = (PassingTopics,)
