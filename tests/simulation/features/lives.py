"""Workers that live and die on an Exclusive or Failover subscription, and every refusal judged.

They are programs as people write them: nobody removes what comes twice. A worker dies of its first
exception, or at any moment; the next process has the same name, another one, or none. Transactions
acknowledge singly and cumulatively, are left open, or ended by a driver when the worker is gone.
After an abort a worker repeats what it remembers, or asks for redelivery. A reconnect, an unload or
a crash of the broker delivers again what it holds.

No message may be consumed by two committed transactions, or by none. A TransactionConflict needs a
reason: `checks.conflicts`. After the last fault the workers must come to the end.
"""

import asyncio
import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

from checks.conflicts import Ack, Book, Life, Moment, reason_for
from checks.history import Logs, Read, Txn
from clients.consumer import Copy, RawConsumer, request_ids
from clients.plain import PlainProducer
from clients.raw import Gone
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.base.names import TopicName
from pybroker.simulation.faults import Fault
from pybroker.wire import pulsar_api_pb2 as pb

KINDS: Final = ("Failover", "Exclusive")
TOPIC: Final = "lives"
SUBSCRIPTION: Final = "lives"
FATES: Final = ("commit", "abort", "leave open", "leave to the driver", "die")
LATELY: Final = 8  # an acknowledgement ends at one of the last so many received


@dataclass(frozen=True, slots=True)
class Manners:
    """Of all workers of a subscription."""

    named: str  # "never", "equally", "each", "anew": each life
    cumulative: float  # the share of such acknowledgements
    dies_of_errors: bool
    names_highest: bool  # an acknowledgement names the highest id, not the last that was received
    overlaps: bool  # it goes on while a transaction is open
    breaks: float  # chance of losing a connection, at each move
    dies: float  # chance, at each move

    @classmethod
    def draw(cls, rng: random.Random) -> "Manners":
        return cls(
            named=rng.choice(("never", "equally", "each", "each", "anew")),
            cumulative=rng.choice((1.0, 1.0, 0.6)),
            dies_of_errors=rng.random() < 0.5,
            names_highest=rng.random() < 0.6,
            overlaps=rng.random() < 0.4,
            breaks=rng.choice((0.0, 0.0, 0.05)),
            dies=rng.choice((0.0, 0.02, 0.1)),
        )


@dataclass(slots=True, eq=False)
class Hand:
    """What a worker has of one topic."""

    consumer: RawConsumer
    life: Life
    held: list[Copy] = field(default_factory=list)  # received and not consumed, as they came
    arrival: dict[Copy, int] = field(default_factory=dict)

    def take(self, copy: Copy) -> None:
        self.arrival[copy] = len(self.arrival)
        self.held.append(copy)

    def take_back(self, copies: list[Copy]) -> None:
        """Of an aborted transaction, unless it has dropped everything since."""
        known = [copy for copy in copies if copy in self.arrival]
        self.held = sorted([*self.held, *known], key=self.arrival.__getitem__)

    def drop_all(self) -> None:
        self.held = []
        self.arrival.clear()


@dataclass(slots=True, eq=False)
class Part:
    """The work of a transaction on one topic."""

    hand: Hand
    copies: list[Copy]  # which its application consumes
    ack: Ack
    request_id: int


Work = tuple[Any, Txn, list[Part]]


class Group:
    """All workers of a subscription, and what is known about them."""

    def __init__(self, feature: Feature, topics: list[str], kind: str, manners: Manners) -> None:
        self.feature = feature
        self.broker = feature.broker
        self.history = feature.history
        self.kind = kind
        self.manners = manners
        self.books = {topic: Book() for topic in topics}
        self.left: list[tuple[Any, Txn]] = []  # to the driver
        self.serious = False  # no more trouble
        self._loads: dict[str, tuple[Callable[[], Any], int]] = {}

    def now(self) -> Moment:
        return Moment(self.history.turn(), self._open())

    def _open(self) -> frozenset[str] | None:
        if not self.broker.serving or self.broker.broker is None:
            return None
        names = self.broker.open_transactions()
        return None if any(name.startswith("of ") for name in names) else frozenset(names)

    def load(self, topic: str) -> int:
        """Counts how often the topic was loaded, as far as anybody looked."""
        seen, count = self._loads.get(topic, (lambda: None, 0))
        served = self.broker.topics.serving(TopicName.parse(topic)) if self.broker.serving else None
        if served is None or seen() is not served:
            count += 1
            self._loads[topic] = (lambda: None) if served is None else weakref.ref(served), count
        return count

    def judge(self, ack: Ack, topic: str, message: str) -> None:
        counts = self.history.counts
        counts["conflicts"] += 1
        reason = reason_for(ack, self.books[topic])
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
        consumer = RawConsumer(
            topic, SUBSCRIPTION, group.kind, self.consumer_name, next(self.consumer_ids),
            self.rng.choice((1, 3, 100)), self.requests,
        )  # fmt: skip
        life = Life(self.consumer_name, consumer.consumer_id, group.now())
        book.lives.append(life)
        consumer.on_subscribe = life.subscribed.append
        consumer.on_pass = lambda: life.begin_pass(group.load(topic))
        consumer.on_given = life.given
        return Hand(consumer, life)

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
        moves = (self._receive, self._transact) if self._held() else (self._receive,)
        await self.rng.choice(moves)(client)

    def _held(self) -> list[Hand]:
        return [hand for hand in self.hands if hand.held]

    async def _reconnect(self) -> None:
        for hand in self.hands:
            if not hand.consumer.connected and self.rng.random() < 0.5:
                self.note(f"subscribes to {hand.consumer.topic} as {self.consumer_name!r}")
                done = await hand.consumer.connect()
                self.note("is subscribed" if done else "is not subscribed")

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
        """Asks for redelivery. It has no open transaction then."""
        while self.open:
            await self._end_open(client)
        self.note("wants everything again")
        now = self.group.now()
        for hand in self.hands:
            hand.drop_all()
            hand.life.forget(now)
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
        txn, record = await self.begin(client)
        parts: list[Part] = []
        try:
            for hand in self._chosen():
                await txn.joined(hand.consumer.topic, SUBSCRIPTION)
                parts.append(self._acknowledge(hand, txn, record))
            if self.rng.random() < 0.2:
                await self._receive(client)  # before it is answered
            for part in parts:
                await self._answered(part)
        except (*FAILURES, Gone) as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            self._have_back(parts)
            await self._after_a_failure(client, any(part.ack.refused for part in parts))
            return
        for part in parts:
            topic = part.hand.consumer.topic
            reads = [Read(topic, copy.key, copy.value) for copy in part.copies]
            record.acknowledged += [(SUBSCRIPTION, read) for read in dict.fromkeys(reads)]
        await self.pause(0.2)
        await self._meets_its_fate(client, (txn, record, parts))

    def _chosen(self) -> list[Hand]:
        held = self._held()
        return self.rng.sample(held, self.rng.randint(1, len(held)))

    def _acknowledge(self, hand: Hand, txn: Any, record: Txn) -> Part:
        cumulative = self.rng.random() < self.manners.cumulative
        lately = range(max(0, len(hand.held) - LATELY), len(hand.held))
        if cumulative:
            done = hand.held[: self.rng.choice(lately) + 1]
            last = max(done, key=lambda copy: copy.key) if self.manners.names_highest else done[-1]
            named, copies = [last], [copy for copy in done if copy.key <= last.key]
        else:
            some = self.rng.sample(lately, self.rng.randint(1, min(3, len(lately))))
            keys = {hand.held[index].key: hand.held[index] for index in sorted(some)}
            named = copies = list(keys.values())
        request_id = hand.consumer.acknowledge(named, txn.txn_id, cumulative)
        if request_id is None:
            raise Gone("the consumer is not connected")
        consumed = frozenset(copy.key for copy in copies)
        end = named[0].key if cumulative else None
        ack = Ack(hand.life, record, consumed, end, self.group.now())
        self.group.books[hand.consumer.topic].acks.append(ack)
        self.history.counts["acknowledged by the living"] += 1
        how = f"up to {end}" if cumulative else "singly"
        self.note(f"{record.name} {how}: {[copy.value for copy in copies]}")
        hand.held = [copy for copy in hand.held if copy not in copies]
        return Part(hand, copies, ack, request_id)

    async def _answered(self, part: Part) -> None:
        """Raises Gone, if it was not accepted."""
        answer = await part.hand.consumer.answer_to(part.request_id)
        part.ack.answered = self.group.now()
        if not answer.HasField("error"):
            return
        if answer.error == pb.TransactionConflict:
            self.group.judge(part.ack, part.hand.consumer.topic, answer.message)
            part.ack.refused = True
        raise Gone(f"{pb.ServerError.Name(answer.error)}: {answer.message}")

    def _have_back(self, parts: list[Part]) -> None:
        for part in parts:
            part.hand.take_back(part.copies)

    async def _after_a_failure(self, client: Any, refused: bool) -> None:
        if self.manners.dies_of_errors:
            await self._die()
        if refused or self.rng.random() < 0.3:
            await self._again(client)

    async def _meets_its_fate(self, client: Any, work: Work) -> None:
        manners, (txn, record, _) = self.manners, work
        weights = (66, 14, 14 * manners.overlaps, 4, 4 * (manners.dies > 0))
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
                part.hand.take_back(part.copies)
        if self.rng.random() < 0.3:
            await self._again(client)


class Driver(Transacting):
    """Ends the transactions of workers that are gone."""

    def __init__(self, *args: Any, group: Group) -> None:
        super().__init__(*args)
        self.group = group

    async def work(self, client: Any) -> None:
        left = self.group.left
        while left or not self.stopping:
            if left and self.rng.random() < 0.5:
                txn_id, record = left.pop(self.rng.randrange(len(left)))
                record.owner = self.node
                txn = client.attach_transaction(txn_id)
                await (self.commit if self.rng.random() < 0.7 else self.abort)(txn, record)
            await self.pause(1.0)


class Lives(Feature):
    name = "lives"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        batching = scenario.batching or rng.random() < 0.5
        return replace(scenario, topics=(*scenario.topics, TOPIC), batching=batching)

    def begin(self) -> None:
        common, simulation = (self.world, self.history), self.simulation
        topics = simulation.partitions_of(self._topics())
        kind, manners = self.rng.choice(KINDS), Manners.draw(self.rng)
        self.note(f"{kind} on {topics}: {manners}")
        self.group = group = Group(self, topics, kind, manners)
        workers = [
            Worker(*common, name, group=group, name_of=_names(manners.named, name))
            for name in ("worker-0", "worker-1")[: 1 if kind == "Exclusive" else 2]
        ]
        simulation.others += [*workers, Driver(*common, "driver", group=group)]
        for number in range(2):
            simulation.producers.append(
                PlainProducer(
                    *common, f"lively-{number}", topic=TOPIC, count=self.rng.choice((5, 15)),
                    dedup=False, batching=simulation.scenario.batching,
                )
            )  # fmt: skip
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            self.world.after(self.some_time(), self._unload, self.rng.choice(topics))
        for _ in range(self.rng.choice((0, 0, 0, 1))):
            fault = Fault(0.0, "crash", self.rng.random() < 0.5, down_s=self.rng.choice((0.0, 1.0)))
            self.world.after(self.some_time(), simulation.happen, fault)

    def _topics(self) -> list[str]:
        others = [topic for topic in self.simulation.scenario.topics if topic != TOPIC]
        return self.rng.choice(([TOPIC], [TOPIC], [TOPIC, self.rng.choice(others)]))

    def _unload(self, topic: str) -> None:
        name = TopicName.parse(topic)
        if self.broker.serving and self.broker.topics.serving(name) is not None:
            self.count("unloads")
            self.note(f"unloads {topic}")
            self.broker.begin(self.broker.topics.unload(name), f"unload {name}")

    def heal(self) -> None:
        self.group.serious = True

    def rest(self) -> None:
        logs = self.simulation.read_all(list(self.group.books))
        self.simulation.wait(lambda: self._is_done(logs), "the workers of a subscription")

    def _is_done(self, logs: Logs) -> bool:
        consumed = self._consumed()
        left = [read for log in logs.values() for read in log if read not in consumed]
        return not left or not (self.broker.open_transactions() or self._backlog())

    def _backlog(self) -> int:
        backlog = 0
        for topic in self.group.books:
            found = self.broker.topics.serving(TopicName.parse(topic))
            subscription = None if found is None else found.subscriptions.get(SUBSCRIPTION)
            backlog += 1 if subscription is None else subscription.backlog
        return backlog

    def _consumed(self) -> set[Read]:
        return {
            read
            for txn in self.history.txns
            if txn.committed
            for subscription, read in txn.acknowledged
            if subscription == SUBSCRIPTION
        }

    def account(self, logs: Logs) -> list[str]:
        consumed, found = self._consumed(), []
        for topic in self.group.books:
            left = set(self._left(topic))
            for read in logs[topic]:
                if read not in consumed and read not in left:
                    found.append(f"CONSUMED BY NONE: {read} is acknowledged")
                elif read in left:
                    found.append(f"ACKNOWLEDGEMENT LOST: {read} is delivered again")
        return found

    def _left(self, topic: str) -> list[Read]:
        who = SimpleNamespace(topic=topic, subscription=SUBSCRIPTION, kind=self.group.kind)
        return self.simulation.left_on_subscription(who)


def _names(named: str, worker: str) -> Callable[[random.Random], str]:
    if named == "anew":
        return lambda rng: f"{worker}-{rng.randrange(10**9)}"
    name = {"never": "", "equally": "worker", "each": worker}[named]
    return lambda _: name


FEATURES: Final = (Lives,)
