"""Ordinary topics are made scalable and deleted at the same time, at several brokers, and get more
partitions, while brokers die. Each topic ends as one or the other, whole, on every broker.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from checks.history import Logs
from clients.plain import Process
from features.feature import Feature

from brokers.administering import Unanswered, ask
from brokers.migrating import taken_from
from pybroker.base.names import TopicName
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.deletion.deletions import PREFIX as TOMBSTONES
from pybroker.client.options import InitialPosition

KEPT: Final = "kept"
_SETTLED_S: Final = 15.0  # several sessions
_FINISHED_S: Final = 150.0
_CONFLICT: Final = 409


@dataclass(slots=True)
class Contested:
    name: TopicName
    partitions: int
    confirmed: list[str] = field(default_factory=list)
    is_whole: bool = False  # all that it is to have was confirmed
    deleted: bool = False  # some request was answered so
    migrated: bool = False

    @property
    def parts(self) -> list[TopicName]:
        return [self.name.partition_at(index) for index in range(self.partitions)] or [self.name]

    @property
    def path(self) -> str:
        return f"persistent/public/default/{self.name.local}{'/partitions' * bool(self.partitions)}"


class Contender(Process):
    """Asks for the migration and the deletion of one topic after the other, of both at once."""

    def __init__(self, *args: Any, cluster: Any) -> None:
        super().__init__(*args)
        self.cluster = cluster
        self.left = self.rng.randint(2, 5)
        self.topics: list[Contested] = []

    async def work(self, client: Any) -> None:
        while self.left:
            self.left -= 1
            local = f"contested-{len(self.topics)}"
            name = TopicName.parse(f"persistent://public/default/{local}")
            topic = Contested(name, self.rng.choice((0, 2, 3)))
            self.topics.append(topic)
            await self._create(topic)
            await self._fill(client, topic)
            await self._contend(topic)

    async def _create(self, topic: Contested) -> None:
        body = b"%d" % topic.partitions if topic.partitions else b""
        while True:
            reply = await self._ask(0.0, "PUT", topic.path, body)
            if reply.is_done or reply.status == _CONFLICT:
                return
            await self.pause(1.0)

    async def _fill(self, client: Any, topic: Contested) -> None:
        for index, part in enumerate(topic.parts):
            consumer = await client.subscribe(
                str(part), KEPT, initial_position=InitialPosition.Earliest
            )
            await consumer.close()
            producer = await client.create_producer(str(part))
            value = f"{topic.name.local}/{index}"
            await producer.send(value.encode())
            await producer.close()
            topic.confirmed.append(value)
        topic.is_whole = True

    async def _contend(self, topic: Contested) -> None:
        migration = f"scalable/public/default/{topic.name.local}/migrate?force=true"
        kinds = self.rng.choices(
            ("migrate", "delete", "grow"), (4, 4, 1), k=self.rng.choice((1, 3))
        )
        within_s, asking = self.rng.choice((0.0, 0.05, 0.5)), list[Any]()
        for kind in ("migrate", "delete", *kinds):
            asked = {
                "migrate": ("POST", migration, b""),
                "delete": ("DELETE", f"{topic.path}?force=true", b""),
                "grow": ("POST", topic.path, b"%d" % (topic.partitions + 1)),
            }[kind]
            if kind != "grow" or topic.partitions:
                asking.append(self._judged(topic, kind, within_s * self.rng.random(), *asked))
        self.rng.shuffle(asking)
        await asyncio.gather(*asking)

    async def _judged(self, topic: Contested, kind: str, after_s: float, *asked: Any) -> None:
        reply = await self._ask(after_s, *asked)
        self.history.counts[f"contested topics, {kind}: {reply.status}"] += 1
        topic.deleted |= kind == "delete" and reply.is_done
        topic.migrated |= kind == "migrate" and reply.is_done

    async def _ask(self, after_s: float, method: str, path: str, body: bytes) -> Reply:
        await asyncio.sleep(after_s)
        try:
            reply = await ask(self.cluster, method, path, body)
        except Unanswered as why:
            self.note(f"{method} {path}: {why}")
            return Reply(0)
        self.note(f"{method} {path}: {reply.status} {reply.body[:100]!r}")
        return reply


class Contending(Feature):
    name = "deleting beside migrations"
    serves_http = True

    def begin(self) -> None:
        self.contender = Contender(self.world, self.history, "contender", cluster=self.broker)
        self.simulation.producers.append(self.contender)

    def rest(self) -> None:
        self.world.sleep(_SETTLED_S)
        until_s = self.world.now + _FINISHED_S
        while list(self._unfinished()) and self.world.now < until_s:
            self.world.sleep(1.0)
        self.found = [f"UNFINISHED: the deletion of {each}" for each in set(self._unfinished())]
        self.simulation.wait(self._is_any_serving, "a broker")

    def _is_any_serving(self) -> bool:
        return any(member.serving for member in self.broker.members)

    def _unfinished(self) -> Iterator[str]:
        for member in self.broker.members:
            if member.serving:
                yield from member.backend.metadata.keys(TOMBSTONES)
                for each in self.contender.topics:
                    if member.topics.tenants.doomed_partitions(each.name):
                        yield str(each.name)

    def account(self, logs: Logs) -> list[str]:
        found = list(self.found)
        for each in self.contender.topics:
            if each.is_whole:
                found += self._judged(each)
        return found

    def _judged(self, topic: Contested) -> list[str]:
        states = {self._state(member, topic) for member in self.broker.members if member.serving}
        self.count(f"contested topics, in the end: {' and '.join(sorted(states))}")
        if len(states) > 1 or "torn" in states:
            return [f"TORN: {topic.name} is {' and '.join(sorted(states))}"]
        (state,) = states
        found = []
        if topic.deleted and state != "deleted":
            found.append(f"UNDELETED: {topic.name} is {state}, and its deletion was confirmed")
        if topic.migrated and state != "scalable":
            found.append(f"UNDONE: {topic.name} is {state}, and its migration was confirmed")
        if state != "deleted":
            there = self.simulation.on_a_fresh_node(self._read(topic, state))
            missing = [value for value in topic.confirmed if value not in there]
            found += [f"LOSS: {value} is not in {topic.name}, {state}" for value in missing]
        return found

    async def _read(self, topic: Contested, state: str) -> set[str]:
        name = topic.name.scalable_name if state == "scalable" else topic.name
        return await taken_from(self.simulation, str(name), KEPT)

    def _state(self, member: Any, topic: Contested) -> str:
        """As the member knows it."""
        tenants, ledgers = member.topics.tenants, member.broker.ledgers
        if tenants.has_scalable_topic(topic.name.scalable_name):
            return "scalable"
        there = {ledgers.exists(part.ledger_name) for part in topic.parts}
        if topic.partitions:
            there.add(tenants.partitions(topic.name) > 0)
        if len(there) > 1:
            return "torn"
        return "ordinary" if True in there else "deleted"
