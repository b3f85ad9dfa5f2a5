"""Topics that are deleted and created again under the same name, whatever happens meanwhile.

Each generation begins empty: with sequence ids from 0, without subscriptions, and without anything
that an earlier one held. A deletion that was answered is complete.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from checks.history import Logs, Outcome
from checks.space import leftovers
from clients.admin import REFUSALS, Unanswered, ask
from clients.plain import Process, value_of
from sim_broker import BrokerProcess

from features.feature import Feature, half_way
from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.policies.table import DEDUPLICATION
from pybroker.broker.topics import Topics
from pybroker.client import aio
from pybroker.client.errors import PulsarException, Timeout

PARTITIONS: Final = 3
NAMESPACE: Final = "public/rebirth"
# Longer than any transaction stays open, any disk is full, or the client needs to notice that a
# silent connection is dead (twice its keep-alive).
LOOK_S: Final = 120.0


@dataclass(slots=True)
class Message:
    value: str
    number: int
    outcome: Outcome = Outcome.UNKNOWN
    committed: bool = True  # also if sent without a transaction


@dataclass(slots=True)
class Generation:
    number: int
    messages: list[Message] = field(default_factory=list)
    seen: dict[str, None] = field(default_factory=dict)


class Phoenix(Process):
    """Repeats for each generation: fill, look, delete. A failed step is repeated."""

    def __init__(self, *args: Any, broker: BrokerProcess, topic: str, partitions: int) -> None:
        super().__init__(*args)
        self.broker = broker
        self.topic = topic
        self.parsed = TopicName.parse(topic)
        self.partitions = partitions
        self.left = self.rng.randint(2, 4)
        self.generation = Generation(0)
        self.steps = [self.prepare, self.fill, self.look, self.delete]
        self.step = 0

    async def work(self, client: Any) -> None:
        while self.left:
            try:
                await self.steps[self.step](client)
            except (Unanswered, ManagedLedgerError) as why:
                self.note(f"{self.steps[self.step].__name__}: {why}")
                await self.pause(1.0)
                continue
            self.step = (self.step + 1) % len(self.steps)
            if self.left and self.step == 0:
                raise PulsarException("the next generation begins with a new client")

    @property
    def running(self) -> Any:
        return self.broker.broker

    async def ask(self, work: Any, crash_chance: float = 0.0) -> Any:
        crash = half_way(self.rng) if self.rng.random() < crash_chance else None
        if crash is not None and self.broker.serving:
            self.history.counts["crashes in a deletion"] += 1
        return await ask(self.broker, work, crash)

    # -- the steps

    async def prepare(self, client: Any) -> None:
        """A separate namespace, where deduplication is switched on and off."""
        deduplicated = self.rng.random() < 0.7

        async def prepare(topics: Topics) -> None:
            if not topics.tenants.has_namespace(NAMESPACE):
                await topics.tenants.create_namespace(NAMESPACE, {})
            await topics.policies.set_for_namespace(NAMESPACE, DEDUPLICATION, deduplicated)
            if self.partitions:
                await topics.create_partitioned(self.parsed, self.partitions)

        try:
            await self.ask(prepare)
        except Conflict as conflict:
            self.note(f"there already: {conflict}")
        consumer = await client.subscribe(self.topic, "look")  # this subscription prevents trimming
        await consumer.close()

    async def fill(self, client: Any) -> None:
        """Sends messages 0, 1, 2 … of one producer name, in transactions or not; each once."""
        producer = await client.create_producer(self.topic, producer_name="etl")
        for _ in range(self.rng.randint(1, 5)):
            number = len(self.generation.messages)
            message = Message(f"{self.topic}#{self.generation.number}/{number}", number)
            self.generation.messages.append(message)
            txn = None
            if self.rng.random() < 0.4:
                message.committed = False
                txn = await client.new_transaction(timeout_ms=5000)
            data = message.value.encode() + b"|" + bytes(self.rng.choice((0, 500)))
            key = f"key-{number}"
            await producer.send(data, txn=txn, sequence_id=number, partition_key=key)
            message.outcome = Outcome.DONE
            if txn is not None:
                await self._end(txn, message)
            await self.pause(0.1)
        if self.rng.random() < 0.5:
            await producer.close()

    async def _end(self, txn: Any, message: Message) -> None:
        if self.rng.random() < 0.7:
            await txn.commit()
            message.committed = True
        elif self.rng.random() < 0.5:
            await txn.abort()

    async def look(self, client: Any) -> None:
        """A new subscription receives exactly this generation."""
        kind = self.rng.choice((aio.ConsumerType.Exclusive, aio.ConsumerType.Shared))
        consumer = await client.subscribe(
            self.topic, "look", kind, initial_position=aio.InitialPosition.Earliest
        )
        give_up_s = self.world.now + LOOK_S
        while self.world.now < give_up_s:
            try:
                message = await consumer.receive(timeout_millis=1000)
            except Timeout:
                if not self._missing():
                    break
                continue
            self._take(value_of(message))
            if self.rng.random() < 0.5:
                await self._acknowledge(client, consumer, message)
        if missing := self._missing():
            self.history.failures.append(f"SWALLOWED: {missing} are not in {self.topic}")
        if self.rng.random() < 0.3:
            await consumer.close()

    async def _acknowledge(self, client: Any, consumer: Any, message: Any) -> None:
        if self.rng.random() < 0.5:
            await consumer.acknowledge(message)
            return
        txn = await client.new_transaction(timeout_ms=5000)
        await consumer.acknowledge(message, txn=txn)
        if self.rng.random() < 0.6:
            await txn.commit()

    def _take(self, value: str) -> None:
        if not value.startswith(f"{self.topic}#{self.generation.number}/"):
            number = self.generation.number
            self.history.failures.append(f"GHOST: {value} in generation {number}")
        self.generation.seen[value] = None

    def _missing(self) -> list[str]:
        """Values acknowledged, committed, and not yet seen."""
        return [
            message.value
            for message in self.generation.messages
            if message.outcome is Outcome.DONE
            and message.committed
            and message.value not in self.generation.seen
        ]

    async def delete(self, client: Any) -> None:
        stays = self.left > 1 and self.rng.random() < 0.3  # disconnected, may reconnect at once
        if not stays:
            await client.close()
        self.history.counts["deletions"] += 1
        name = self.parsed

        switched = self.rng.choice((None, None, True, False))

        async def delete(topics: Topics) -> bool:
            if switched is not None and topics.tenants.has_namespace(NAMESPACE):
                await topics.policies.set_for_namespace(NAMESPACE, DEDUPLICATION, switched)
                await topics.unload(name.partition_at(0) if self.partitions else name)
            old = self._ledgers()
            rivals = self._rivals(topics)
            if self.rng.random() < 0.5:
                await asyncio.sleep(0)  # the rivals have begun
            try:
                await (
                    topics.delete_partitioned(name, True)
                    if self.partitions
                    else topics.delete(name, True)
                )
            except TopicNotFound:
                pass
            finally:
                await asyncio.gather(*rivals, return_exceptions=True)
            return self._outlived(topics, old, stays)

        if await self._sure(delete):
            self.history.failures.append(f"UNDELETED: {name} is still there")
        await client.close()
        self.generation = Generation(self.generation.number + 1)
        self.left -= 1

    async def _sure(self, delete: Any) -> bool:
        while True:
            try:
                return bool(await self.ask(delete, crash_chance=0.4))
            except Unanswered:
                await self.pause(1.0)
            except REFUSALS as error:
                self.note(f"deletion: {error!r}")
                await self.pause(1.0)

    def _topics(self) -> list[TopicName]:
        return [self.parsed.partition_at(i) for i in range(self.partitions)] or [self.parsed]

    def _ledgers(self) -> list[int]:
        ledgers = self.running.ledgers
        return [n for name in self._topics() for n in ledgers.ledger_ids(name.ledger_name)]

    def _outlived(self, topics: Topics, old: list[int], stays: bool) -> bool:
        """Whether old ledgers remain, or the topic exists although no client could have recreated
        it.
        """
        if any(ledger_id in old for ledger_id in self.running._backend.ledger_ids()):
            return True
        nobody = not stays and not self._connected()
        return nobody and any(map(topics.exists, self._topics()))

    def _connected(self) -> bool:
        """For the broker: a client that closed while it reconnected may still be connected."""
        peers = [session._transport.peer for session in self.running.server.sessions]
        return any(peer.node.name.startswith(f"{self.name}.") for peer in peers)

    def _rivals(self, topics: Topics) -> list[Any]:
        """Other requests for the topic at the same time; none would create it."""
        rivals: list[Any] = []
        if self.rng.random() < 0.5:
            name = self.parsed.partition_at(0) if self.partitions else self.parsed
            if self.rng.random() < 0.6:
                rivals.append(asyncio.ensure_future(topics.get(name)))
            rivals.append(asyncio.ensure_future(topics.unload(name)))
            self.history.counts["deletions with rivals"] += 1
        return rivals


class Rebirth(Feature):
    name = "rebirth"

    def begin(self) -> None:
        partitions = self.rng.choice((0, PARTITIONS))
        topic = f"persistent://{NAMESPACE}/{'ashes' if partitions else 'phoenix'}"
        self.simulation.producers.append(
            Phoenix(
                self.world, self.history, "phoenix", broker=self.broker, topic=topic,
                partitions=partitions,
            )
        )  # fmt: skip

    def account(self, logs: Logs) -> list[str]:
        return leftovers(self.broker)


FEATURES: Final = (Rebirth,)
