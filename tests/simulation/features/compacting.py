"""A topic that is compacted repeatedly: keyed messages and deletions of keys, alone and in
transactions. Meanwhile readers read it compacted, and the broker crashes in the middle.

A compacted message is in the log. For each key its last message is there, or nothing if that
message deletes the key. A table that a slow durable consumer keeps ends with the same.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from checks.history import Logs
from clients.plain import Process
from clients.transacting import Transacting
from sim_scenario import Scenario

from features.feature import Feature, half_way
from pybroker.base.names import TopicName
from pybroker.broker.policies.deleted_keys import COMPACTION_DELETE_RETENTION
from pybroker.client import aio
from pybroker.client.errors import Timeout

NAME: Final = "compacted"
TOPIC: Final = f"persistent://public/default/{NAME}"
KEYS: Final = 4


@dataclass(frozen=True, slots=True)
class Keyed:
    message_id: tuple[int, int, int]
    key: str
    data: bytes


def keyed_of(message: Any) -> Keyed:
    return Keyed(message.order_key, message.partition_key(), message.data())


class KeyedProducer(Transacting):
    def __init__(self, *args: Any, count: int, batching: bool) -> None:
        super().__init__(*args)
        self.left = count
        self.batching = batching

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producer = await client.create_producer(
            TOPIC, batching_enabled=self.batching, batching_max_messages=4
        )
        while self.left > 0:
            txn, record = await self._maybe_transaction(client)
            for _ in range(self.rng.randint(1, 5)):
                self.left -= 1
                await self._send(producer, txn)
            if txn is not None:
                await self.pause(0.5)
                await self.end(client, txn, record)
            await self.pause(0.3)

    async def _maybe_transaction(self, client: Any) -> Any:
        return await self.begin(client) if self.rng.random() < 0.5 else (None, None)

    async def _send(self, producer: Any, txn: Any) -> None:
        deletes = self.rng.random() < 0.25
        data = b"" if deletes else b"%s/%d" % (self.name.encode(), self.left)
        key = f"key-{self.rng.randrange(KEYS)}"
        await producer.send(data, partition_key=key, txn=txn)


class CompactedReader(Process):
    """Reads from the first message on, repeatedly, and records what it was handed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.turns: list[list[Keyed]] = []

    async def work(self, client: Any) -> None:
        while not self.stopping:
            reader = await client.create_reader(
                TOPIC, aio.MessageId.earliest, is_read_compacted=True
            )
            self.turns.append([])
            for _ in range(self.rng.choice((3, 20, 100))):
                try:
                    message = await reader.read_next(timeout_millis=500)
                except Timeout:
                    break
                self.turns[-1].append(keyed_of(message))
            await reader.close()
            await self.pause(1.0)


class Table(Process):
    """Keeps the last message of each key, over all of its lives; mostly it is behind."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows: dict[str, Keyed] = {}

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self.follow(client, self.rng.choice((1, 5, 20)))
            await self.pause(5.0)

    async def follow(self, client: Any, most: int) -> None:
        consumer = await client.subscribe(
            TOPIC, "table", initial_position=aio.InitialPosition.Earliest, is_read_compacted=True
        )
        for _ in range(most):
            try:
                message = await consumer.receive(timeout_millis=1000)
            except Timeout:
                break
            keyed = keyed_of(message)
            self.rows[keyed.key] = keyed
            if not keyed.data:
                del self.rows[keyed.key]
            await consumer.acknowledge(message)
        await consumer.close()


class Compacting(Feature):
    name = "compacting"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: Random) -> Scenario:
        return replace(scenario, guards=(*scenario.guards, (NAME, "guard")))

    def begin(self) -> None:
        batching = self.rng.random() < 0.5
        for number in range(self.rng.randint(1, 3)):
            count = self.rng.choice((5, 20, 40))
            producer = KeyedProducer(
                self.world, self.history, f"keyed-{number}", count=count, batching=batching
            )
            self.simulation.producers.append(producer)
        self.reader = CompactedReader(self.world, self.history, "compacted-reader")
        self.table = Table(self.world, self.history, "table")
        self.simulation.others += [self.reader, self.table]
        if self.rng.random() < 0.7:  # otherwise they are kept for longer than the seed lasts
            self.world.after(0.1, self._keep_no_deletions)
        for _ in range(self.rng.randint(2, 8)):
            self.world.after(self.some_time(), self._compact)

    def _compact(self) -> None:
        if not self.broker.serving:
            return
        self.note("compacts")
        self.count("compactions")
        self.broker.begin(self._start(), "compaction")
        if self.rng.random() < 0.3:
            self.count("crashes in a compaction")
            self.broker.crash(half_way(self.rng))

    def _keep_no_deletions(self) -> None:
        if self.broker.serving:
            name, policies = TopicName.parse(TOPIC), self.broker.topics.policies
            setting = policies.set_for_topic(name, COMPACTION_DELETE_RETENTION, 0)
            self.broker.begin(setting, "no retention of deletions")

    async def _start(self) -> None:
        topic: Any = await self.broker.topics.get(TopicName.parse(TOPIC))
        if topic is not None:
            topic.compaction.start()

    def rest(self) -> None:
        if self.rng.random() < 0.7:
            self.world.after(0.0, self._compact_at_rest)
            self.world.sleep(2.0)

    def _compact_at_rest(self) -> None:
        if self.broker.serving:
            self.broker.begin(self._start(), "last compaction")

    # -- the account

    def account(self, logs: Logs) -> list[str]:
        whole = self.simulation.on_a_fresh_node(self._read(False))
        compacted = self.simulation.on_a_fresh_node(self._read(True))
        there = set(whole)
        found = [
            f"NOT IN THE LOG: {keyed} was read compacted"
            for keyed in dict.fromkeys(
                each for turn in [*self.reader.turns, compacted] for each in turn
            )
            if keyed not in there
        ]
        for turn in [*self.reader.turns, compacted]:
            if turn != sorted(turn, key=lambda each: each.message_id):
                found.append(f"ORDER: read compacted were {turn}")
        self.simulation.on_a_fresh_node(self._complete_the_table())
        found += _wrongly_compacted(whole, list(self.table.rows.values()), "the table has")
        return found + _wrongly_compacted(whole, compacted, "read compacted is")

    async def _complete_the_table(self) -> None:
        client = self.simulation.auditor()
        await self.table.follow(client, 10_000)
        await client.close()

    async def _read(self, compacted: bool) -> list[Keyed]:
        client = self.simulation.auditor()
        reader = await client.create_reader(
            TOPIC, aio.MessageId.earliest, is_read_compacted=compacted
        )
        found = []
        while await reader.has_message_available():
            found.append(keyed_of(await reader.read_next(timeout_millis=60_000)))
        await client.close()
        return found


def _wrongly_compacted(whole: list[Keyed], compacted: list[Keyed], there: str) -> list[str]:
    last = {keyed.key: keyed for keyed in whole}
    left = {keyed.key: keyed for keyed in compacted}
    found = []
    for key, keyed in last.items():
        if keyed.data and left.get(key) != keyed:
            found.append(f"COMPACTED AWAY: {keyed} is the last of its key; {there} {left.get(key)}")
        elif not keyed.data and left.get(key, keyed) != keyed:
            found.append(f"NOT DELETED: {there} {left[key]}, and {keyed} is in the log")
    return found


FEATURES: Final = (Compacting,)
