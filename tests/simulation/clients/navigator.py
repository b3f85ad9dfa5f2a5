"""A consumer alone on its subscription that seeks, unsubscribes and resubscribes.

An epoch is what it is handed between two such moves. checks.positions says what an epoch may
contain. If a move gets no answer, the start of the next epoch is unknown.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from checks.history import Read, Txn

from clients.plain import read_of, subscribe
from clients.transacting import FAILURES, Transacting
from pybroker.client import aio
from pybroker.client.errors import Timeout

LONGEST_TXN_S: Final = 40.0  # any timeout, and any outage of a broker
SUBSCRIPTION: Final = "navigator"
UNTIL_WRITTEN_S: Final = 6.0  # lazy acknowledgements are on disk by then, even after stalls
OrderKey = tuple[int, int, int]
Place = tuple[int, int]  # ledger and entry
SOMEWHERE: Final = (-1, -1), (1 << 63, 0)


@dataclass(slots=True)
class Held:
    """Messages that one transaction may have acknowledged."""

    txn: Txn
    reads: list[Read] = field(default_factory=list)
    singly: bool = True


@dataclass(slots=True)
class Epoch:
    """Requests on the subscription, and messages received, since the last move."""

    behind: OrderKey | None = None  # the last message that is left out
    since_ms: int | None = None  # or: the publish time to begin with
    # The end of the log when that was requested, and when it was answered. Later messages are not
    # searched, whatever their time.
    ends: tuple[Place, Place] = SOMEWHERE
    loose: bool = False  # unknown start, or unknown messages that an open transaction withholds
    reads: list[Read] = field(default_factory=list)
    acknowledged: dict[Read, None] = field(default_factory=dict)  # perhaps
    surely: dict[Read, None] = field(default_factory=dict)  # and these surely
    txns: list[Held] = field(default_factory=list)

    @property
    def seen(self) -> list[Read]:
        return list(dict.fromkeys(self.reads))


class Navigator(Transacting):
    """The last of `epochs` is the current one."""

    def __init__(
        self,
        *args: Any,
        topic: str,
        after_a_seek: Callable[[], None],
        end_of_log: Callable[[], Place | None],
    ) -> None:
        super().__init__(*args)
        self.topic = topic
        self.after_a_seek = after_a_seek  # called after its answer
        self.end_of_log = end_of_log  # of the topic; None while unknown
        self.subscription = SUBSCRIPTION
        self.kind = "Exclusive"
        self.epochs = [Epoch(behind=(-1, -1, -1))]
        self.moving = False  # a move was requested, and its answer is missing
        self.received: list[Any] = []  # messages of this session
        self.began_s: dict[str, float] = {}

    @property
    def epoch(self) -> Epoch:
        return self.epochs[-1]

    async def work(self, client: Any) -> None:
        if self.moving:  # in an earlier life
            self._begin_epoch(Epoch(loose=True))
        self.received = []
        consumer = await self._subscribe(client)
        moves = (
            self._receive, self._receive, self._receive, self._receive, self._acknowledge,
            self._acknowledge_cumulatively, self._acknowledge_in_transaction, self._deliver_again,
            self._seek, self._seek_to_time, self._unsubscribe,
        )  # fmt: skip
        weights = (9, 9, 9, 9, 9, 4, 9, 3, 5, 3, 2)
        while not self.stopping:
            (move,) = self.rng.choices(moves, weights)
            consumer = await move(client, consumer) or consumer
            await self.pause(0.4)
        await self._finish(client, consumer)

    async def _subscribe(self, client: Any) -> Any:
        return await subscribe(self, client, self.topic, self.subscription, self.kind)

    def _begin_epoch(self, epoch: Epoch) -> None:
        epoch.loose = epoch.loose or self._holds_open()
        self.epochs.append(epoch)
        self.received = []
        self.moving = False

    def _holds_open(self) -> bool:
        """An earlier transaction may still withhold or acknowledge messages."""
        return any(
            not held.txn.ended and self.world.now < self.began_s[held.txn.name] + LONGEST_TXN_S
            for epoch in self.epochs
            for held in epoch.txns
        )

    # -- its actions

    async def _receive(self, client: Any, consumer: Any) -> None:
        for _ in range(self.rng.randint(1, 6)):
            try:
                message = await consumer.receive(timeout_millis=200)
            except Timeout:
                return
            self.received.append(message)
            self.epoch.reads.append(read_of(message))

    async def _acknowledge(self, client: Any, consumer: Any) -> None:
        for message in self._some():
            self.epoch.acknowledged[read_of(message)] = None
            await consumer.acknowledge(message)

    async def _acknowledge_cumulatively(self, client: Any, consumer: Any) -> None:
        for message in self._some()[:1]:
            self._note_all_up_to(message, self.epoch.acknowledged)
            await consumer.acknowledge_cumulative(message)

    def _note_all_up_to(self, message: Any, acknowledged: dict[Read, None]) -> None:
        for read in self.epoch.reads:
            if read.message_id <= message.order_key:
                acknowledged[read] = None

    async def _acknowledge_in_transaction(self, client: Any, consumer: Any) -> None:
        messages = self._some()
        if not messages:
            return
        txn, record = await self.begin(client)
        self.began_s[record.name] = self.world.now
        held = Held(record)
        self.epoch.txns.append(held)
        try:
            if self.rng.random() < 0.3:
                covered: dict[Read, None] = {}
                self._note_all_up_to(messages[0], covered)
                held.reads, held.singly = list(covered), False
                await consumer.acknowledge_cumulative(messages[0], txn=txn)
            else:
                held.reads = [read_of(message) for message in messages]
                for message in messages:
                    await consumer.acknowledge(message, txn=txn)
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
        else:
            if self.rng.random() < 0.3:
                await self._receive(client, consumer)
            await self.end(client, txn, record)

    async def _deliver_again(self, client: Any, consumer: Any) -> None:
        if self.rng.random() < 0.5:
            consumer.redeliver_unacknowledged_messages()
        else:
            for message in self._some()[:1]:
                consumer.negative_acknowledge(message)

    async def _seek(self, client: Any, consumer: Any) -> None:
        known = [message.message_id() for message in self.received]
        target = self.rng.choice([aio.MessageId.earliest, *known[-8:], *known[-8:]])
        self.note(f"seeks to {target}")
        await self._move(consumer.seek(target), "seeks by id")
        self._begin_epoch(Epoch(behind=target.order_key))
        self.after_a_seek()

    async def _seek_to_time(self, client: Any, consumer: Any) -> None:
        if not self.received:
            return
        since_ms = self.rng.choice(self.received).publish_timestamp() + self.rng.randint(-2, 2)
        self.note(f"seeks to the time {since_ms}")
        asked = self.end_of_log() or SOMEWHERE[0]
        await self._move(consumer.seek(since_ms), "seeks by time")
        answered = self.end_of_log() or SOMEWHERE[1]
        self._begin_epoch(Epoch(since_ms=since_ms, ends=(asked, answered)))
        self.after_a_seek()

    async def _unsubscribe(self, client: Any, consumer: Any) -> Any:
        self.note("unsubscribes")
        await self._move(consumer.unsubscribe(), "subscriptions deleted and made again")
        self._begin_epoch(Epoch(behind=(-1, -1, -1)))
        return await self._subscribe(client)

    async def _move(self, asking: Any, what: str) -> None:
        """The position is unknown until the answer, and stays so without one."""
        self.moving = True
        self.history.counts[what] += 1
        await asking

    def _some(self) -> list[Any]:
        """Some of the last received messages, in order."""
        recent = self.received[-12:]
        count = min(len(recent), self.rng.randint(1, 4))
        chosen = sorted(self.rng.sample(range(len(recent)), count))
        return [recent[index] for index in chosen]

    # -- the end: some acknowledgements that are certain

    async def _finish(self, client: Any, consumer: Any) -> None:
        if self.last is not None:
            await self.settle_the_last(client)
        withheld = {r for epoch in self.epochs for held in epoch.txns for r in held.reads}
        chosen = [message for message in self._some() if read_of(message) not in withheld]
        sessions = {message.entry.given.session for message in chosen}
        for message in chosen:
            self.epoch.acknowledged[read_of(message)] = None
            await consumer.acknowledge(message)
        await consumer.get_last_message_id()
        again = await consumer.receive(timeout_millis=1) if consumer.queued else None
        if again is not None:
            sessions.add(again.entry.given.session)
        await asyncio.sleep(UNTIL_WRITTEN_S)
        if len(sessions) == 1 and consumer.is_connected():
            self.note(f"acknowledged {len(chosen)} for certain")
            self.epoch.surely.update((read_of(message), None) for message in chosen)
        await consumer.close()
