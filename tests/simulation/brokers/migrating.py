"""An ordinary topic whose partitions several brokers serve is made scalable while writers write to
it, bundles move, and brokers die; then it is split and merged. Each is decided once, and a
subscription that nobody uses meanwhile loses nothing.
"""

import asyncio
from typing import Any, Final

from checks.history import Logs, Outcome, Sent
from clients.plain import Process, new_client, value_of
from clients.transacting import FAILURES
from features.feature import Feature

from brokers.administering import Unanswered, ask
from pybroker.base.names import any_topic
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.client.errors import Timeout
from pybroker.client.options import InitialPosition

ORDINARY: Final = any_topic("persistent://public/default/moves")
NAME: Final = ORDINARY.scalable_name
AWAY: Final = "away"
KEYS: Final = 6
SILENCE_MS: Final = 20_000  # after it, there is nothing more
_PATH: Final = "scalable/public/default/moves"
_CONFLICT: Final = 409


class Writer(Process):
    """Waits for each receipt. Whatever fails is not sent again."""

    def __init__(self, *args: Any, count: int, sent: dict[str, Sent]) -> None:
        super().__init__(*args)
        self.left = count
        self.sent = sent

    async def work(self, client: Any) -> None:
        producer = await client.create_producer(str(ORDINARY), follows_migration=True)
        while self.left > 0:
            self.left -= 1
            key = f"key-{self.rng.randrange(KEYS)}"
            value = f"{self.name}/{self.incarnation}/{key}/{self.left}"
            self.sent[value] = Sent(value, str(ORDINARY), self.name, self.left)
            await self.send(producer, self.sent[value], partition_key=key)
            await self.pause(0.3)
        await producer.close()


class Migrator(Process):
    """Makes the topic scalable; afterwards splits and merges it. Asks any broker."""

    def __init__(self, *args: Any, cluster: Any) -> None:
        super().__init__(*args)
        self.cluster = cluster
        self.is_scalable = False
        self.left = self.rng.choice((0, 1, 4))  # changes of its segments

    async def work(self, client: Any) -> None:
        await self.pause(8.0)
        while not self.is_scalable:
            reply = await self._ask("POST", "migrate?force=true", "migration")
            self.is_scalable = reply.is_done or b"exists" in reply.body
            await self.pause(1.0)
        while self.left:
            self.left -= 1
            await self._change()
            await self.pause(3.0)

    async def _change(self) -> None:
        record = (await self._ask("GET", "", "record")).json() or {"segments": {}}
        active = [each for each in record["segments"].values() if each["active"]]
        active.sort(key=lambda each: each["hashRange"]["start"])
        if not active:
            return
        at = self.rng.randrange(len(active))
        one, other = (active[each]["segmentId"] for each in (at, max(0, at - 1)))
        if one != other and self.rng.random() < 0.5:
            await self._ask("POST", f"merge/{one}/{other}", "merge")
        else:
            await self._ask("POST", f"split/{one}", "split")

    async def _ask(self, method: str, path: str, what: str) -> Reply:
        try:
            reply = await ask(self.cluster, method, f"{_PATH}/{path}".removesuffix("/"))
        except Unanswered as why:
            self.note(f"{what}: {why}")
            return Reply(0)
        self.note(f"{what}: {reply.status} {reply.body[:100]!r}")
        self.history.counts[f"{what} over brokers: {reply.status}"] += 1
        return reply


class Migrating(Feature):
    name = "migrating over brokers"
    serves_http = True

    def begin(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.partitions = self.rng.choice((0, 2, 4))
        common = self.world, self.history
        self.simulation.on_a_fresh_node(self._begin_topic())
        self.simulation.producers += [
            Writer(*common, f"moving-{number}", count=30, sent=self.sent)
            for number in range(self.rng.randint(1, 2))
        ]
        self.simulation.producers.append(Migrator(*common, "migrator", cluster=self.broker))

    async def _begin_topic(self) -> None:
        while True:
            client = new_client(self.world, self.rng)
            try:
                return await self._create_topic(client)
            except (Unanswered, *FAILURES) as why:
                self.note(f"the topic is created again: {why!r}")
                await asyncio.sleep(0.5)
            finally:
                await client.close()

    async def _create_topic(self, client: Any) -> None:
        if self.partitions:
            path = "persistent/public/default/moves/partitions"
            reply = await ask(self.broker, "PUT", path, b"%d" % self.partitions)
            if not (reply.is_done or reply.status == _CONFLICT):
                raise Unanswered(f"{reply.status}")
        earliest = InitialPosition.Earliest
        consumer = await client.subscribe(str(ORDINARY), AWAY, initial_position=earliest)
        await consumer.close()

    def account(self, logs: Logs) -> list[str]:
        there = self.simulation.on_a_fresh_node(self._what_is_there())
        return [
            f"LOSS: {value} is not in {NAME}"
            for value, sent in self.sent.items()
            if sent.outcome is Outcome.DONE and value not in there
        ]

    async def _what_is_there(self) -> set[str]:
        return await taken_from(self.simulation, str(NAME), AWAY)


async def taken_from(simulation: Any, topic: str, subscription: str) -> set[str]:
    """What a queue consumer of the subscription gets, until nothing more comes."""
    client, found = simulation.auditor(), set[str]()
    while True:
        try:
            consumer = await client.create_queue_consumer(topic, subscription, create_topic=False)
            break
        except FAILURES as why:
            simulation.history.notes.append(f"the auditor reads {topic} again: {why!r}")
    while True:
        try:
            message = await consumer.receive(timeout_millis=SILENCE_MS)
        except Timeout:
            break
        found.add(value_of(message))
        await consumer.acknowledge(message)  # so that drained segments are left
    await client.close()
    return found
