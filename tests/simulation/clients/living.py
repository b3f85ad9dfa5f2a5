"""Workers that live and die on an Exclusive or Failover subscription: see features/lives.py."""

import asyncio
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from checks.conflicts import Ack, Book, Key, Life, Moment, reason_for
from checks.history import History, Logs, Read, Txn

from clients.consumer import Conflict, Copy, OwnConsumer, RawConsumer, request_ids
from clients.raw import Gone
from clients.transacting import FAILURES, Transacting
from pybroker.base.names import TopicName
from pybroker.client import aio

FATES: Final = ("commit", "abort", "leave open", "leave to the driver", "die")
LATELY: Final = 8  # an acknowledgement ends at one of the last so many received


@dataclass(frozen=True, slots=True)
class Manners:
    """Of all workers of a subscription."""

    own_client: bool  # this project's, which leaves nothing to guess
    named: str  # "never", "equally", "each", "anew": each life
    cumulative: float  # the share of such acknowledgements
    dies_of_errors: bool
    names_highest: bool  # an acknowledgement names the highest id, not the last that was received
    has_driver: bool  # which ends transactions of the dead
    overlaps: bool  # it goes on while a transaction is open
    breaks: float  # chance of losing a connection, at each move
    dies: float  # chance, at each move

    @classmethod
    def draw(cls, rng: random.Random) -> "Manners":
        return cls(
            own_client=rng.random() < 0.25,
            named=rng.choice(("never", "equally", "each", "each", "anew")),
            cumulative=rng.choice((1.0, 1.0, 0.6)),
            dies_of_errors=rng.random() < 0.5,
            names_highest=rng.random() < 0.6,
            has_driver=True,
            overlaps=rng.random() < 0.4,
            breaks=rng.choice((0.0, 0.0, 0.05)),
            dies=rng.choice((0.0, 0.02, 0.1)),
        )


@dataclass(slots=True, eq=False)
class Hand:
    """What a worker has of one topic."""

    consumer: RawConsumer | OwnConsumer
    life: Life
    held: list[Copy] = field(default_factory=list)  # received and not consumed, as they came
    arrival: dict[Copy, int] = field(default_factory=dict)
    twice: set[Key] = field(default_factory=set)
    asked: dict[Copy, int] = field(default_factory=dict)  # how often, before it came
    requests: int = 0  # for redelivery

    def take(self, copy: Copy) -> None:
        if any(copy.key == known.key for known in self.arrival):
            self.twice.add(copy.key)
        self.arrival[copy] = len(self.arrival)
        self.asked[copy] = self.requests
        self.held.append(copy)

    def take_back(self, copies: list[Copy]) -> None:
        """Of an aborted transaction, unless it has dropped everything since."""
        known = [copy for copy in copies if copy in self.arrival]
        self.held = sorted([*self.held, *known], key=self.arrival.__getitem__)

    def drop_all(self) -> None:
        self.held = []
        self.arrival.clear()
        self.twice = set()

    def unclear(self, last: Copy) -> frozenset[Key]:
        """The messages of which a client cannot know whether an acknowledgement up to this one
        means them, or means them once: there are two copies, or it came before the message.
        """
        after = (copy.key for copy, at in self.arrival.items() if at > self.arrival[last])
        twice = (key for key in self.twice if key <= last.key)
        return frozenset((*twice, *(key for key in after if key < last.key)))


@dataclass(slots=True, eq=False)
class Part:
    """The work of a transaction on one topic."""

    hand: Hand
    copies: list[Copy]  # which its application consumes
    end: Copy  # the one that a cumulative acknowledgement names
    ack: Ack
    request_id: int
    answered: bool = False


Work = tuple[Any, Txn, list[Part]]


class Group:
    """All workers of a subscription, and what is known about them."""

    def __init__(
        self,
        broker: Any,
        history: History,
        subscription: str,
        topics: list[str],
        kind: str,
        manners: Manners,
    ) -> None:
        self.broker = broker
        self.history = history
        self.subscription = subscription
        self.kind = kind
        self.manners = manners
        self.books = {topic: Book() for topic in topics}
        self.left: list[tuple[Any, Txn]] = []  # to a driver
        self.serious = False  # no more trouble
        self.logs: Logs | None = None  # once nothing is added any more
        self._loads: dict[str, tuple[Callable[[], Any], int]] = {}

    def now(self) -> Moment:
        return Moment(self.history.turn(), self._open())

    def _open(self) -> frozenset[str] | None:
        if not self.broker.serving or self.broker.broker is None:
            return None
        names = self.broker.open_transactions()
        return None if any(name.startswith("of ") for name in names) else frozenset(names)

    def load(self, topic: str) -> int:
        """Counts how often the topic was loaded, as far as anybody looked; from 1 on. While it is
        not loaded, the last one counts.
        """
        seen, count = self._loads.get(topic, (lambda: None, 0))
        served = self.broker.topics.serving(TopicName.parse(topic)) if self.broker.serving else None
        if served is not None and seen() is not served:
            count += 1
            self._loads[topic] = weakref.ref(served), count
        return count or 1

    def judge(self, ack: Ack, topic: str, message: str) -> None:
        counts = self.history.counts
        counts["conflicts"] += 1
        reason = reason_for(ack, self.books[topic], self.manners.own_client)
        if reason is not None:
            counts[f"conflicts: {reason}"] += 1
            return
        up_to = f"up to {ack.end}" if ack.end else f"of {sorted(ack.consumed)}"
        self.history.failures.append(
            f"NEEDLESS REFUSAL: {ack.txn.name} acknowledges {up_to} on {topic} at turn "
            f"{ack.sent.turn}, and nobody else has any of it; the answer is {message!r}"
        )


class Worker(Transacting):
    def __init__(self, *args: Any, group: Group, name_of: Callable[[random.Random], str]) -> None:
        super().__init__(*args)
        self.group = group
        self.manners = group.manners
        self.name_of = name_of
        self.haste = self.world.stream(f"haste {self.name}")
        self.hands: list[Hand] = []
        self.open: list[Work] = []  # its own, while it goes on

    # -- life

    async def work(self, client: Any) -> None:
        self.requests = request_ids(self.rng)
        self.hands, self.open = [], []
        self.consumer_name, self.consumer_ids = self.name_of(self.rng), iter(range(1000))
        if self.rng.random() < 0.5:
            await self.settle_the_last(client)
        try:
            self.client = client
            self.hands = [self._consumer(topic) for topic in self.group.books]
            while not self.stopping:
                await self._move(client)
            for hand in self.hands:
                await hand.consumer.close()
        finally:
            for hand in self.hands:
                hand.consumer.cut()

    def _consumer(self, topic: str) -> Hand:
        group, book = self.group, self.group.books[topic]
        life = Life(self.consumer_name, next(self.consumer_ids), group.now())
        book.lives.append(life)
        if self.manners.own_client:
            return Hand(OwnConsumer(partial(self._subscribed, self.client, topic), topic), life)
        consumer = RawConsumer(
            topic, group.subscription, group.kind, life.name, life.consumer_id,
            self.rng.choice((1, 3, 100)), self.requests,
        )  # fmt: skip
        consumer.on_subscribe = lambda request: life.subscribes(request, group.load(topic))
        consumer.on_pass = lambda: life.begin_pass(group.load(topic))
        consumer.on_given = life.given
        return Hand(consumer, life)

    async def _subscribed(self, client: Any, topic: str) -> Any:
        return await client.subscribe(
            topic,
            self.group.subscription,
            consumer_type=getattr(aio.ConsumerType, self.group.kind),
            initial_position=aio.InitialPosition.Earliest,
            consumer_name=self.consumer_name or None,
            receiver_queue_size=self.rng.choice((1, 3, 100)),
        )

    async def _die(self) -> None:
        self.history.counts["deaths of workers"] += 1
        self.crash(self.rng.choice((0.0, 0.1, 1.0)))
        await asyncio.get_running_loop().create_future()  # never comes

    async def _move(self, client: Any) -> None:
        await self.pause(0.2)
        await self._reconnect()
        if not self.group.serious:
            await self._trouble(client)
        if self.open and (self.group.serious or self.rng.random() < 0.3):
            await self._end_open(client)
        await self.rng.choice((self._receive, self._transact))(client)

    def _held(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.held]

    async def _reconnect(self) -> None:
        for hand in self.hands:
            if not hand.consumer.connected and self.rng.random() < 0.5:
                self.note(f"subscribes to {hand.consumer.topic} as {self.consumer_name!r}")
                done = await hand.consumer.connect()
                self.note("is subscribed" if done else "is not subscribed")
                if done:
                    hand.life.is_known_in(self.group.load(hand.consumer.topic))

    async def _trouble(self, client: Any) -> None:
        if self.rng.random() < self.manners.dies:
            await self._die()
        if self.rng.random() < self.manners.breaks:
            hand = self.rng.choice(self.hands)
            self.note(f"loses its connection for {hand.consumer.topic}")
            hand.consumer.cut()
        if self.rng.random() < 0.03:
            await self._again(client)
        if self.rng.random() < 0.02:
            await self._come_anew()

    async def _come_anew(self) -> None:
        """The application closes a consumer and creates another one."""
        number = self.rng.randrange(len(self.hands))
        hand = self.hands[number]
        self.note(f"closes the consumer of {hand.consumer.topic}")
        await hand.consumer.close()
        hand.drop_all()
        self.hands[number] = self._consumer(hand.consumer.topic)

    async def _again(self, client: Any) -> None:
        """Asks for redelivery. It has no open transaction then. With this project's client it may
        go on with what it holds.
        """
        while self.open:
            await self._end_open(client)
        self.note("wants everything again")
        now = self.group.now()
        keeps = self.manners.own_client and self.rng.random() < 0.5
        for hand in self.hands:
            if not keeps:
                hand.drop_all()
            hand.life.forget(now, hand.consumer.connected)
            hand.requests += 1
            hand.consumer.redeliver()

    async def _receive(self, client: Any) -> None:
        hand = self.rng.choice(self.hands)
        for _ in range(self.rng.randint(1, 6)):
            copy = await hand.consumer.receive(0.1)
            if copy is None:
                return
            self.note(f"received {copy.value} {copy.key}")
            hand.take(copy)

    # -- transactions

    async def _transact(self, client: Any) -> None:
        chosen = self._chosen()
        if not chosen:
            return
        txn, record = await self.begin(client)
        parts: list[Part] = []
        try:
            for hand in chosen:
                await txn.joined(hand.consumer.topic, self.group.subscription)
                parts += self._acknowledge(hand, txn, record)
            if self.rng.random() < 0.2:
                await self._receive(client)  # before it is answered
            for part in parts:
                await self._answered(part)
                part.answered = True
        except (*FAILURES, Conflict, Gone) as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            self._have_back(parts)
            await self._after_a_failure(client, isinstance(error, Conflict))
            return
        for part in parts:
            topic = part.hand.consumer.topic
            reads = [Read(topic, copy.key, copy.value) for copy in part.copies]
            record.acknowledged += [
                (self.group.subscription, read) for read in dict.fromkeys(reads)
            ]
        await self.pause(0.2)
        await self._meets_its_fate(client, (txn, record, parts))

    def _chosen(self) -> list[Hand]:
        """Not where an open transaction of its own acknowledges cumulatively: it would have to know
        whether that commits.
        """
        parts = [part for _, _, parts in self.open for part in parts]
        waiting = [part.hand for part in parts if part.ack.end is not None]
        held = [hand for hand in self._held() if hand not in waiting]
        return self.rng.sample(held, self.rng.randint(1, len(held))) if held else []

    def _acknowledge(self, hand: Hand, txn: Any, record: Txn) -> list[Part]:
        cumulative = self.rng.random() < self.manners.cumulative
        lately = range(max(0, len(hand.held) - LATELY), len(hand.held))
        if cumulative:
            done = hand.held[: self.rng.choice(lately) + 1]
            last = max(done, key=lambda copy: copy.key) if self.manners.names_highest else done[-1]
            meant = (copy for copy in done if hand.asked[copy] == hand.asked[last])
            named, copies = [last], [copy for copy in meant if copy.key <= last.key]
        else:
            some = self.rng.sample(lately, self.rng.randint(1, min(3, len(lately))))
            keys = {hand.held[index].key: hand.held[index] for index in sorted(some)}
            named = copies = list(keys.values())
        parts: list[Part] = []
        hastens = cumulative and not self.manners.own_client and self.haste.random() < 0.2
        if hastens and (sooner := [copy for copy in copies if copy.key < named[0].key]):
            end = self.haste.choice(sooner)
            those = [copy for copy in copies if copy.key <= end.key]
            parts.append(self._send(hand, txn, record, [end], those, cumulative))
            copies = [copy for copy in copies if copy not in those]
            self.history.counts["acknowledged further without waiting"] += 1
        return [*parts, self._send(hand, txn, record, named, copies, cumulative)]

    def _send(
        self, hand: Hand, txn: Any, record: Txn, named: list[Copy], copies: list[Copy],
        cumulative: bool,
    ) -> Part:  # fmt: skip
        request_id = hand.consumer.acknowledge(named, txn, cumulative)
        end = named[0].key if cumulative else None
        unclear = hand.unclear(named[0]) if cumulative else frozenset()
        consumed = frozenset(copy.key for copy in copies)
        ack = Ack(hand.life, record, consumed, end, self.group.now(), unclear)
        self.group.books[hand.consumer.topic].acks.append(ack)
        self.history.counts["acknowledged by the living"] += 1
        self.note(f"{record.name} up to {end or 'these'}: {[copy.value for copy in copies]}")
        hand.held = [copy for copy in hand.held if copy not in copies]
        return Part(hand, copies, named[0], ack, request_id)

    async def _answered(self, part: Part) -> None:
        """Raises Conflict, Gone, and the client's errors."""
        if self.manners.own_client and part.ack.end is not None:
            # It is called only now, and more may have been received meanwhile.
            part.ack.unclear |= part.hand.unclear(part.end)
        try:
            await part.hand.consumer.answer_to(part.request_id)
        except Conflict as error:
            part.ack.answered = self.group.now()
            self.group.judge(part.ack, part.hand.consumer.topic, str(error))
            # This project's client sends several commands, of which some may have been accepted.
            part.ack.refused = not self.manners.own_client
            raise

    def _have_back(self, parts: list[Part]) -> None:
        """Of this project's client, what is acknowledged singly comes again without a request."""
        for part in parts:
            singly = part.ack.end is None and part.answered
            if not (singly and self.manners.own_client):
                part.hand.take_back(part.copies)

    async def _after_a_failure(self, client: Any, refused: bool) -> None:
        if self.manners.dies_of_errors:
            await self._die()
        if refused or self.rng.random() < 0.3:
            await self._again(client)

    async def _meets_its_fate(self, client: Any, work: Work) -> None:
        manners, (txn, record, _) = self.manners, work
        weights = (66, 14, 14 * manners.overlaps, 4 * manners.has_driver, 4 * (manners.dies > 0))
        (fate,) = self.rng.choices(FATES, weights)
        if self.group.serious:
            fate = "commit"
        if fate == "commit":
            await self._commit(client, work)
        elif fate == "abort":
            await self._abort(client, work)
        elif fate == "leave open":
            self.open.append(work)
        else:
            if fate == "leave to the driver":
                self.group.left.append((txn.txn_id, record))
                self.last = None
            await self._die()

    async def _end_open(self, client: Any) -> None:
        work = self.open.pop(self.rng.randrange(len(self.open)))
        await (self._commit if self.rng.random() < 0.5 else self._abort)(client, work)

    async def _commit(self, client: Any, work: Work) -> None:
        txn, record, parts = work
        await self.commit(txn, record)
        if not record.committed:
            self._have_back(parts)
            await self._after_a_failure(client, False)

    async def _abort(self, client: Any, work: Work) -> None:
        """It repeats what it remembers, or asks for redelivery, or waits for what comes again."""
        txn, record, parts = work
        await self.abort(txn, record)
        self.history.counts["aborted by the living"] += 1
        waits = self.rng.random() < 0.4
        for part in parts:
            if part.ack.end is not None or not waits:
                self._have_back([part])
        if self.rng.random() < 0.3:
            await self._again(client)
