"""Messages that are dropped as expired, or as too large a backlog of an unread subscription.

They have their own topic, with a subscription that only expiry and eviction acknowledge; some of
these meet an unload or a crash. Each message missing in the end must have been droppable: old
enough or before an old enough one, or within the quota's reach. It must neither be of a transaction
whose commit had not been requested, nor come after one. The cursor is also checked after each drop:
a message may be dropped too early, although its drop is right in the end.
"""

import random
from dataclasses import dataclass, replace
from math import inf
from types import SimpleNamespace
from typing import Any, Final

from checks.history import Logs, Read, Sent, Txn
from clients.transacting import Transacting
from sim_scenario import Scenario

from features.feature import Feature, half_way
from managed_ledger.position import Position
from pybroker.base.names import TopicName
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies import expiry, quotas
from pybroker.simulation.world import SimulatedClock

TOPIC: Final = "persistent://public/default/perishing"
SUBSCRIPTION: Final = "keeper"
MOST_DROPS: Final = 8
CRASH_CHANCE: Final = 0.2
Place = tuple[int, int]


@dataclass(slots=True)
class Drop:
    older_than_ms: int | None  # None: up to a place
    up_to: Place = (-1, -1)
    ended_s: float = inf  # unknown if the broker died during it


class Perishable(Transacting):
    """Sends messages alone and, with probability `in_txns`, in transactions."""

    def __init__(self, *args: Any, count: int, sent: dict[str, Sent], in_txns: float) -> None:
        super().__init__(*args)
        self.left = count
        self.in_txns = in_txns
        self.sent = sent
        self.asked_s: dict[Txn, float] = {}

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producer = await client.create_producer(TOPIC, batching_enabled=False)
        while self.left:
            txn, record = await self.begin(client) if self._in_one() else (None, None)
            for _ in range(self.rng.randint(1, 4)):
                self.left = max(0, self.left - 1)
                value = f"{self.name}/{self.incarnation}/{self.left}"
                self.sent[value] = Sent(value, TOPIC, self.name, self.left, txn=record)
                await self.send(producer, self.sent[value], txn)
                await self.pause(0.2)
            if txn is not None:
                await self.pause(1.5)
                await self.end(client, txn, record)
            await self.pause(0.3)

    def _in_one(self) -> bool:
        return self.rng.random() < self.in_txns

    async def commit(self, txn: Any, record: Txn) -> None:
        self.asked_s.setdefault(record, self.world.now)
        await super().commit(txn, record)


class Perishing(Feature):
    name = "perishing"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, guards=(*scenario.guards, (TOPIC, SUBSCRIPTION)))

    def begin(self) -> None:
        often, in_txns = 1, 0.5
        if "slow reads" in self.simulation.enabled:  # many messages during the searches
            often, in_txns = 3, self.rng.choice((0.0, 0.2, 0.5))
        self.sent: dict[str, Sent] = {}
        self.drops: list[Drop] = []
        self.marks: list[tuple[Place, int]] = []  # the cursor's, with drops begun by then
        self.producers = [
            Perishable(
                self.world, self.history, f"perishable-{number}", sent=self.sent,
                count=often * self.rng.choice((4, 10, 20)), in_txns=in_txns,
            )
            for number in range(self.rng.randint(1, 2))
        ]  # fmt: skip
        self.simulation.producers.extend(self.producers)
        for _ in range(often * self.rng.randint(1, MOST_DROPS)):
            self.world.after(self.some_time(), self._drop)

    def _drop(self) -> None:
        topics, name = self.broker.topics, TopicName.parse(TOPIC)
        topic = topics.serving(name) if self.broker.serving else None
        if topic is None:
            return
        now_ms = SimulatedClock(self.world).now_ms()
        if self.rng.random() < 0.6:
            drop = Drop(now_ms - self.rng.choice((0, 300, 2000)))
            work = expiry.expire_older(topic, drop.older_than_ms or 0, now_ms)
        else:
            at = quotas.leaving(topic.ledger, self.rng.choice((0, 100, 1000)))
            drop = Drop(None, at)
            work = self._evict(topic, at, now_ms)
        self.drops.append(drop)
        self.note(f"drops {drop}")
        self.count("drops")
        if self.rng.random() < CRASH_CHANCE:
            self.count("crashes in a drop")
            self.broker.crash(half_way(self.rng))
        self.broker.begin(self._ended(drop, work, topic), "drop")

    async def _ended(self, drop: Drop, work: Any, topic: Topic) -> None:
        await work
        drop.ended_s = self.world.now
        if (subscription := topic.subscriptions.get(SUBSCRIPTION)) is not None:
            self.marks.append((subscription.cursor.mark_delete_position, len(self.drops)))

    async def _evict(self, topic: Topic, up_to: Position, now_ms: int) -> None:
        await expiry.drop(topic, topic.subscriptions[SUBSCRIPTION], up_to, now_ms)

    def account(self, logs: Logs) -> list[str]:
        assert self.broker.node is not None
        # First of all, because dropped messages may be trimmed at any moment.
        times = self.world.call(self.broker.node, self.broker.times_in(TOPIC))
        log = self.simulation.read_all([TOPIC])[TOPIC]
        reader = SimpleNamespace(topic=TOPIC, subscription=SUBSCRIPTION, kind="Shared")
        left = {read.value for read in self.simulation.left_on_subscription(reader)}
        self.history.counts["messages dropped"] += sum(read.value not in left for read in log)
        return [
            f"DROPPED: {read} by nobody who might"
            for index, read in enumerate(log)
            if (drops := self._before_it_went(read, left)) is not None
            and not any(self._may(drop, log[: index + 1], times) for drop in drops)
        ]

    def _before_it_went(self, read: Read, left: set[str]) -> list[Drop] | None:
        """The drops begun before it was first seen to be gone; None: it still exists."""
        for mark, begun in self.marks:
            if read.message_id[:2] <= mark:
                return self.drops[:begun]
        return None if read.value in left else self.drops

    def _may(self, drop: Drop, log: list[Read], times: list[tuple[Place, int]]) -> bool:
        """Whether the drop may take the last message of `log`, which has all messages up to it."""
        asked: dict[Txn, float] = {}
        for producer in self.producers:
            asked |= producer.asked_s
        txns = (self.sent[read.value].txn for read in log)
        if any(txn is not None and asked.get(txn, 0.0) > drop.ended_s for txn in txns):
            return False
        place = log[-1].message_id[:2]
        if drop.older_than_ms is None:
            return place <= drop.up_to
        return any(at >= place and ms < drop.older_than_ms for at, ms in times)


FEATURES: Final = (Perishing,)
