"""A scalable topic whose segments are split, merged, rebucketed and pruned while writers write to
it, alone and in transactions, and while the broker crashes in the middle. Sometimes it is an
ordinary topic at first, which is made scalable.

A subscription that nobody uses meanwhile loses nothing; without one, drained segments are pruned. A
stream reader, which gets segments as the drain rule allows, has the messages of a key in order, and
misses none. One epoch is one layout.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from checks.history import Logs, Sent
from checks.segments import certain, doubled, missed, of_aborted, out_of_order
from clients.admin import Unanswered, ask
from clients.plain import Process, value_of
from clients.transacting import FAILURES, Transacting

from features.feature import Feature, half_way
from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError, TopicNotFound
from pybroker.base.names import any_topic
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.broker.policies.table import RETENTION
from pybroker.broker.scalable import drains
from pybroker.broker.scalable.layout import Layout, layout_of, scalable_layout
from pybroker.broker.scalable.migration import Migration
from pybroker.broker.topics import Topics
from pybroker.client.connection.connection import KEEP_ALIVE_S
from pybroker.client.errors import Timeout
from pybroker.client.options import InitialPosition
from pybroker.simulation.world import SimulatedClock

NAMESPACE: Final = "public/elastic"  # nothing is retained there
NAME: Final = any_topic(f"topic://{NAMESPACE}/split")
ORDINARY: Final = any_topic(f"persistent://{NAMESPACE}/split")
AWAY, STREAM = "away", "stream"
KEYS: Final = 4
CRASH_CHANCE: Final = 0.4
MOST_ACTIVE: Final = 5
QUIET_ROUNDS: Final = 30
LONG_QUIET_S: Final = 3 * KEEP_ALIVE_S  # by then a client has noticed that its connection is silent
SILENCE_MS: Final = 20_000  # after it, a segment has nothing more to give
Place = tuple[int, Any]  # a segment's number, and a message id
# Asks a broker that has the topic, as clients.admin.ask does.
Ask = Callable[..., Awaitable[Any]]


async def look_up(topics: Topics) -> Layout:
    if not topics.tenants.has_scalable_topic(NAME):
        await topics.ownership.refreshed()  # as the broker does: its mirror may be late
    if not topics.tenants.has_scalable_topic(NAME):
        return layout_of(ORDINARY, topics.tenants.partitions(ORDINARY), 0)
    return scalable_layout(NAME, await topics.scalable.settled(NAME), 0)


async def assigned(topics: Topics, drained: set[int]) -> tuple[Layout, set[int]]:
    """The layout, and what is drained of it by now."""
    layout = await look_up(topics)
    awaits = drains.awaited(layout, drained)
    return layout, drained | await drains.newly_drained(topics, layout, STREAM, awaits)


class Layouts:
    """What lookups have said: the same epoch must be the same layout."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._by_epoch: dict[tuple[Any, int], frozenset[Any]] = {}
        self.violations: list[str] = []

    async def now(self) -> Layout:
        return self.seen(await self._ask(look_up))

    def seen(self, layout: Layout) -> Layout:
        said = frozenset((each.topic, each.sealed) for each in layout.segments)
        if self._by_epoch.setdefault((layout.name, layout.epoch), said) != said:
            self.violations.append(f"TWO LAYOUTS: of epoch {layout.epoch}")
        return layout


def place_of(key: int, layout: Layout) -> str:
    """The topic of the active segment that has the key."""
    at = key * (65_536 // KEYS)
    return next(
        each.topic
        for each in layout.segments
        if not each.sealed and each.hash_start <= at <= each.hash_end
    )


class Writer(Transacting):
    """Has keys of its own; waits for each receipt. Whatever fails is not sent again."""

    def __init__(self, *args: Any, layouts: Layouts, count: int, sent: dict[str, Sent]) -> None:
        super().__init__(*args)
        self.layouts = layouts
        self.left = count
        self.number = 0
        self.sent = sent

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producers: dict[str, Any] = {}
        while self.left > 0:
            try:
                await self._write_some(client, producers)
            except (Unanswered, ManagedLedgerError, *FAILURES) as why:
                self.note(f"writes again: {why!r}")
                for producer in producers.values():
                    await producer.close()
                producers.clear()
            await self.pause(0.3)

    async def _write_some(self, client: Any, producers: dict[str, Any]) -> None:
        layout = await self.layouts.now()
        txn, record = await self.begin(client) if self.rng.random() < 0.5 else (None, None)
        try:
            for _ in range(self.rng.randint(1, 4)):
                await self._write(client, producers, layout, txn, record)
                await self.pause(0.2)
        except FAILURES:
            if txn is not None:
                await self.abort(txn, record)
            raise
        if txn is not None:
            await self.pause(4.0)
            await self.end(client, txn, record)

    async def _write(
        self, client: Any, producers: dict[str, Any], layout: Layout, txn: Any, record: Any
    ) -> None:
        key = self.rng.randrange(KEYS)
        topic, options = self.place(key, layout)
        if topic not in producers:
            producers[topic] = await client.create_producer(topic, batching_enabled=False)
        self.left, self.number = self.left - 1, self.number + 1
        value = f"{self.name}/{self.incarnation}/{key}/{self.number}"
        self.sent[value] = Sent(value, str(NAME), self.name, self.number, txn=record)
        await self.send(producers[topic], self.sent[value], txn, **options)

    def place(self, key: int, layout: Layout) -> tuple[str, Mapping[str, str]]:
        """The topic to which messages of the key are sent, and options of the message."""
        return place_of(key, layout), {}


class WholeWriter(Writer):
    """The client finds each key's segment, and sends again what was not answered."""

    def place(self, key: int, layout: Layout) -> tuple[str, Mapping[str, str]]:
        if layout.name != NAME:  # an ordinary topic; a lookup of the name would create another one
            return super().place(key, layout)
        return str(NAME), {"partition_key": f"key-{key}"}


class Splitter(Process):
    """Changes segments, sometimes several times at once, sometimes while the broker crashes."""

    def __init__(self, *args: Any, ask: Ask, layouts: Layouts, count: int) -> None:
        super().__init__(*args)
        self.ask = ask
        self.layouts = layouts
        self.left = count

    async def work(self, client: Any) -> None:
        while self.left > 0:
            if self.rng.random() < 0.7:
                await self.pause(3.0)
            crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
            try:
                await self._change(await self.layouts.now(), crash)
                if self.rng.random() < 0.4:
                    await self._prune()
            except (Unanswered, PulsarError, ManagedLedgerError, Conflict) as why:
                self.note(f"was not answered: {why}")
            self.left -= 1

    async def _prune(self) -> None:
        crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE / 2 else None
        gone = await self.ask(lambda topics: topics.scalable.pruner.prune_unneeded(NAME), crash)
        self.history.counts["segments pruned"] += len(gone)

    async def _migrate(self, topics: Topics) -> None:
        metadata, clock = topics.scalable._metadata, SimulatedClock(self.world)
        await Migration(topics, topics.scalable, metadata, clock).migrate(NAME, force=True)
        self.history.counts["topics migrated"] += 1

    async def _change(self, layout: Layout, crash: Any) -> None:
        if layout.name == ORDINARY:
            self.note("migrates")
            await self.ask(self._migrate, crash)
            return
        active = sorted(each for each in layout.segments if not each.sealed)
        active.sort(key=lambda each: each.hash_start)
        at = self.rng.randrange(len(active))
        splits = at + 1 == len(active) or (len(active) < MOST_ACTIVE and self.rng.random() < 0.6)
        one, other = active[at].id, active[min(at + 1, len(active) - 1)].id
        buckets = self.rng.choice((1, 2, 4, 8)) if self.rng.random() < 0.2 else None

        async def change(topics: Topics) -> None:
            if buckets is not None:
                await topics.scalable.rebucket(NAME, one, buckets)
            elif splits:
                await topics.scalable.split(NAME, one)
            else:
                await topics.scalable.merge(NAME, one, other)

        what = f"splits {one}" if splits else f"merges {one} and {other}"
        self.note(what if buckets is None else f"rebuckets {one}")
        await self.ask(change, crash)
        self.history.counts["segments changed"] += 1


class StreamReader(Process):
    """Reads the segments that a group of one consumer would get, and acknowledges everything."""

    def __init__(self, *args: Any, ask: Ask, layouts: Layouts) -> None:
        super().__init__(*args)
        self.ask = ask
        self.layouts = layouts
        # Values, in the order of their first receipt, and the places where each is stored.
        self.read: dict[str, set[Place]] = {}
        self._drained: set[int] = set()
        self._left: set[int] = set()
        self.quiet = 0  # rounds without a message

    async def work(self, client: Any) -> None:
        consumers: dict[int, Any] = {}
        while not self.stopping:
            try:
                layout, self._drained = await self.ask(
                    lambda topics: assigned(topics, self._drained)
                )
                self.layouts.seen(layout)
                await self._round(client, consumers, layout)
            except (Unanswered, ManagedLedgerError, *FAILURES) as why:
                self.note(f"reads again: {why!r}")
                for consumer in consumers.values():
                    await consumer.close()
                consumers.clear()
                await self.pause(1.0)

    async def _round(self, client: Any, consumers: dict[int, Any], layout: Layout) -> None:
        before = len(self.read)
        assignable = drains.assignable(layout, self._drained)
        segments = [each for each in assignable if each.id not in self._left]
        self.rng.shuffle(segments)
        for each in segments:
            if each.id not in consumers:
                consumers[each.id] = await client.subscribe(
                    each.topic, STREAM, initial_position=InitialPosition.Earliest
                )
            if not await self._take(consumers[each.id], each.id) and each.id in self._drained:
                await consumers.pop(each.id).close()
                self._left.add(each.id)  # it can be pruned
        self.quiet = 0 if len(self.read) > before else self.quiet + 1
        await self.pause(self.rng.choice((0.1, 0.1, 4.0)))

    async def _take(self, consumer: Any, segment: int) -> bool:
        """Whether it had something."""
        for taken in range(self.rng.choice((1, 3, 20))):
            try:
                message = await consumer.receive(timeout_millis=100)
            except Timeout:
                return taken > 0
            self.read.setdefault(value_of(message), set()).add((segment, message.message_id()))
            await consumer.acknowledge(message)
        return True


async def _take_all(client: Any, segment: str, found: set[str]) -> None:
    try:
        consumer = await client.subscribe(segment, AWAY)
    except TopicNotFound:
        return  # pruned meanwhile: it was empty
    while True:
        try:
            found.add(value_of(await consumer.receive(timeout_millis=SILENCE_MS)))
        except Timeout:
            break
    await consumer.close()


class Splitting(Feature):
    name = "splitting"

    def begin(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.ask = partial(ask, self.broker)
        self.layouts = Layouts(self.ask)
        common = (self.world, self.history)
        self.simulation.on_a_fresh_node(self._begin_topic())
        self.writers = [
            Writer(*common, f"writer-{number}", layouts=self.layouts, count=50, sent=self.sent)
            for number in range(self.rng.randint(1, 3))
        ]
        asking = {"ask": self.ask, "layouts": self.layouts}
        self.writers.append(
            WholeWriter(*common, "whole-writer", layouts=self.layouts, count=50, sent=self.sent)
        )
        splitter = Splitter(*common, "splitter", **asking, count=self.rng.randint(2, 6))
        self.reader = StreamReader(*common, "stream-reader", **asking)
        self.simulation.producers.extend((*self.writers, splitter))
        self.simulation.others.append(self.reader)

    async def _begin_topic(self) -> None:
        partitions = self.rng.choice((None, None, 0, 2))  # None: it is scalable from the beginning
        self.some_is_away = self.rng.random() < 0.5
        while True:
            try:
                await self.ask(lambda topics: self._create(topics, partitions))
                segments = (await self.layouts.now()).segments
                break
            except Unanswered:  # a process of another feature has crashed the broker
                await asyncio.sleep(1)
        client = self.simulation.auditor()
        for each in segments:
            for subscription in (AWAY, STREAM) if self.some_is_away else (STREAM,):
                consumer = await client.subscribe(
                    each.topic, subscription, initial_position=InitialPosition.Earliest
                )
                await consumer.close()
        await client.close()

    async def _create(self, topics: Topics, partitions: int | None) -> None:
        """Idempotent."""
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        with suppress(Conflict):
            await topics.tenants.create_namespace(NAMESPACE, {})
        await topics.policies.set_for_namespace(NAMESPACE, RETENTION, nothing)
        with suppress(Conflict):
            if partitions is None:
                await topics.scalable.create(NAME)
            elif partitions:
                await topics.create_partitioned(ORDINARY, partitions)
            else:
                await topics.get(ORDINARY, create=True)

    def rest(self) -> None:
        self.reader.quiet = 0  # until now it may have waited for a transaction
        self.rests_from_s = self.world.now
        self.simulation.wait(self._is_read, "the stream reader")

    def _is_read(self) -> bool:
        """Or nothing comes any more: the account tells what is missing."""
        is_all = all(value in self.reader.read for value in certain(self.sent))
        rests_s = self.world.now - self.rests_from_s
        return is_all or (self.reader.quiet > QUIET_ROUNDS and rests_s > LONG_QUIET_S)

    def account(self, logs: Logs) -> list[str]:
        there: Collection[str] = self.reader.read
        if self.some_is_away:
            there = self.simulation.on_a_fresh_node(self._what_is_there())
        reader = self.sent, self.reader.read, "the stream reader"
        return [
            *self.layouts.violations,
            *(
                f"LOSS: {value} is not in {NAME}"
                for value in certain(self.sent)
                if value not in there
            ),
            *missed(*reader),
            *of_aborted(*reader),
            *out_of_order(*reader),
            *(doubled(*reader) if self.simulation.scenario.deduplication else ()),
        ]

    async def _what_is_there(self) -> set[str]:
        """What the subscription that was away gets, from all segments.

        From all at once: while it rests, the broker merges segments, so there may be many.
        """
        client, found = self.simulation.auditor(), set[str]()
        segments = (await self.layouts.now()).segments
        await asyncio.gather(*(_take_all(client, each.topic, found) for each in segments))
        await client.close()
        return found


FEATURES: Final = (Splitting,)
