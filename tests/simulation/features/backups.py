"""An older copy of the data directory is restored, and clients continue from the broker's state.

The copy is made and restored while the broker is down; the operator stops the clients for the
restoring. Messages acknowledged before the copy exist. A transaction between the copy and its
restoring is gone, or whole if the copy had its decision. A client that resends what the broker no
longer knows ends with each message once. A client that consumes, transforms and produces in
transactions ends with each output once.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from checks.history import Logs, Read, Txn
from clients.plain import Process, read_of, receive_one, subscribe
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import Feature
from pybroker.base.names import TopicName
from pybroker.client import aio
from pybroker.client.errors import Timeout
from pybroker.simulation.faults import Fault

TOPIC: Final = "persistent://public/default/backed-up"
OUTPUT: Final = "persistent://public/default/backed-up-out"
SUBSCRIPTION: Final = "transformer"
BEFORE, BETWEEN, AFTER = range(3)  # before the copy, between it and its restoring, after that


class Sender(Process):
    """Keeps its messages, and sends those that the broker does not know."""

    def __init__(self, *args: Any, count: int, feature: "OlderBackups") -> None:
        super().__init__(*args)
        self.values = [f"{self.name}/{number}" for number in range(count)]
        self.feature = feature

    async def work(self, client: Any) -> None:
        producer = await client.create_producer(
            TOPIC, producer_name=self.name, batching_enabled=False
        )
        number = producer.last_sequence_id() + 1
        self.note(f"goes on with {number}")
        while number < len(self.values):
            await producer.send(self.values[number].encode(), sequence_id=number)
            number += 1
            await self.pause(0.6)
        while not self.feature.is_over:  # it may have to resume earlier
            await self.pause(1.0)
        await producer.close()


@dataclass(slots=True)
class Group:
    """A transaction's messages, and the phases in which it last sent and in which it ended."""

    txn: Txn
    values: list[str] = field(default_factory=list)
    last_sent: int = BEFORE
    ended: int = BETWEEN


class GroupSender(Transacting):
    """Sends each value once, in a transaction."""

    def __init__(self, *args: Any, feature: "OlderBackups") -> None:
        super().__init__(*args)
        self.feature = feature
        self.left = 20
        self.groups: list[Group] = []

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producer = await client.create_producer(TOPIC)
        while self.left > 0 or not self.feature.is_over:
            self.left -= 1
            txn, record = await self.begin(client)
            group = Group(record)
            self.groups.append(group)
            try:
                for number in range(self.rng.randint(1, 4)):
                    value = f"{self.name}/{len(self.groups)}/{number}"
                    group.values.append(value)
                    group.last_sent = self.feature.phase
                    await producer.send(value.encode(), txn=txn)
                    await self.pause(0.4)
            except FAILURES:
                await self.abort(txn, record)
                raise
            await self.end(client, txn, record)
            group.ended = self.feature.phase
            await self.pause(0.5)


class OnceTransformer(Transacting):
    """Sends an output for each input, with its acknowledgement in the same transaction."""

    topic, subscription, kind = TOPIC, SUBSCRIPTION, "Failover"

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        consumer = await subscribe(self, client, self.topic, self.subscription, self.kind)
        producer = await client.create_producer(OUTPUT)
        while not self.stopping:
            message = await receive_one(consumer, 500)
            if message is None:
                continue
            txn, record = await self.begin(client)
            try:
                await consumer.acknowledge(message, txn=txn)
                await producer.send(b"of " + message.data(), txn=txn)
            except FAILURES:
                await self.abort(txn, record)
                raise
            if not await self.end(client, txn, record):
                consumer.redeliver_unacknowledged_messages()
        await consumer.close()


class Witness(Process):
    """Reads from the first message on, again in each life."""

    def __init__(self, *args: Any, feature: "OlderBackups") -> None:
        super().__init__(*args)
        self.feature = feature
        self.lives: list[tuple[int, list[Read]]] = []

    async def work(self, client: Any) -> None:
        reads: list[Read] = []
        self.lives.append((self.feature.phase, reads))
        reader = await client.create_reader(TOPIC, aio.MessageId.earliest)
        while not self.stopping:
            try:
                reads.append(read_of(await reader.read_next(timeout_millis=1000)))
            except Timeout:
                continue
        await reader.close()


class OlderBackups(Feature):
    name = "older backups"
    meets_others = False  # promises of other features hold only if nothing is restored

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        guards = (*scenario.guards, (TOPIC, SUBSCRIPTION), (OUTPUT, "guard"))
        return replace(
            scenario, deduplication=True, topics=(), plain_producers=0, txn_producers=0,
            transformers=(), plain_consumers=(), guards=guards,
        )  # fmt: skip

    def begin(self) -> None:
        self.phase = self.wanted = BEFORE
        self.given_up = False
        self.copy: dict[str, bytes] = {}
        common = self.world, self.history
        self.senders = [
            Sender(*common, f"sender-{n}", count=self.rng.choice((10, 30)), feature=self)
            for n in range(self.rng.randint(1, 2))
        ]
        self.group_sender = GroupSender(*common, "group-sender", feature=self)
        self.witness = Witness(*common, "witness", feature=self)
        self.transformers = [OnceTransformer(*common, f"once-{n}") for n in range(2)]
        self.clients = [*self.senders, self.group_sender, self.witness, *self.transformers]
        self.simulation.producers += [*self.senders, self.group_sender]
        self.simulation.others += [self.witness, *self.transformers]
        self.broker.before_start.append(self._while_it_is_down)
        copied_s = 1.0 + 5.0 * self.rng.random()
        self.world.after(copied_s, self._stop_for, BETWEEN)
        self.world.after(copied_s + 1.0 + 5.0 * self.rng.random(), self._stop_for, AFTER)

    @property
    def is_over(self) -> bool:
        """Nothing will be restored any more."""
        return self.phase == AFTER or self.given_up

    def _stop_for(self, phase: int) -> None:
        """An orderly stop or a crash: for a broker, a snapshot of a running disk is a power cut."""
        if self.given_up:
            return
        if not self.broker.serving or self.phase < phase - 1:
            self.world.after(0.5, self._stop_for, phase)
            return
        self.wanted = phase
        if self.rng.random() < 0.5:
            self.broker.stop_orderly(0.1)
        else:
            operation = self.rng.choice((0, 1, 7))
            self.broker.crash(Fault(0.0, "crash", disk_operation=operation, down_s=0.1))

    def _while_it_is_down(self) -> None:
        if self.given_up:
            return
        if self.phase == BEFORE and self.wanted > BEFORE:
            self.copy = self.broker.disk.copy()
            self.phase = BETWEEN
            self.note("the data directory is copied")
        elif self.phase == BETWEEN and self.wanted > BETWEEN:
            self.broker.disk.put_back(self.copy)
            self.phase = AFTER
            self.count("older copies put back")
            self.note("the copy is put back")
            self.history.txns.clear()  # their ids are reused
            for client in self.clients:
                client.last = None
                client.crash(0.2 * self.rng.random())

    def heal(self) -> None:
        """If nothing has been restored by now, nothing will be, and nothing is lost."""
        self.given_up = self.phase < AFTER
        if self.given_up:
            self.phase = BEFORE
            for group in self.group_sender.groups:
                group.last_sent = group.ended = BEFORE

    def rest(self) -> None:
        self.simulation.wait(self._all_is_transformed, "the transformers")

    def _all_is_transformed(self) -> bool:
        topic = self.broker.topics.serving(TopicName.parse(TOPIC)) if self.broker.serving else None
        if topic is None:
            return False
        mark = topic.subscriptions[SUBSCRIPTION].cursor.mark_delete_position
        return mark >= topic.buffer.last_visible_position()

    def account(self, logs: Logs) -> list[str]:
        read = self.simulation.read_all([TOPIC, OUTPUT])
        there = Counter(each.value for each in read[TOPIC])
        outputs = Counter(each.value.removeprefix("of ") for each in read[OUTPUT])
        left = self.simulation.left_on_subscription(self.transformers[0])
        return [
            *(text for sender in self.senders for text in _not_once(sender, read[TOPIC])),
            *(text for group in self.group_sender.groups for text in _not_whole(group, there)),
            *(f"DUPLICATE: {value} is {n} times in {TOPIC}" for value, n in there.items() if n > 1),
            *self._wrongly_read(read[TOPIC]),
            *(f"UNPROCESSED: {each} by {SUBSCRIPTION}" for each in left),
            *(
                f"HALF: {value} is {there[value]} times in {TOPIC}, {outputs[value]} outputs are"
                for value in {**there, **outputs}
                if there[value] != outputs[value]
            ),
        ]

    def _wrongly_read(self, log: list[Read]) -> list[str]:
        return [
            f"SKIPPED: a reader got {[each.value for each in reads]} after the copy was put back"
            for phase, reads in self.witness.lives
            if phase == AFTER and reads != log[: len(reads)]
        ]


def _not_once(sender: Sender, log: list[Read]) -> list[str]:
    stored = [each.value for each in log if each.value in sender.values]
    if stored == sender.values:
        return []
    if lost := [value for value in sender.values if value not in stored]:
        return [f"LOSS: {lost} of {sender.name} are not in {TOPIC}"]
    return [f"ORDER: {sender.name} has stored {stored}"]


def _not_whole(group: Group, there: Counter[str]) -> list[str]:
    txn, visible = group.txn, [value for value in group.values if there[value]]
    if visible and txn.surely_aborted:
        return [f"ABORTED READ: {visible} of {txn.name}"]
    if visible and group.last_sent == BETWEEN:
        return [f"GHOST: {visible} of {txn.name}, which went on after the copy"]
    if visible and visible != group.values:
        return [f"PARTIAL TRANSACTION: {txn.name} shows {visible} of {group.values}"]
    if txn.committed and group.ended != BETWEEN and not visible:
        return [f"LOSS: {group.values} of {txn.name}, committed"]
    return []


FEATURES: Final = (OlderBackups,)
