"""A topic that is terminated while producers write to it, alone and in transactions, and while the
broker crashes in the middle.

The answer names the last message. No readable message comes after it, except for later commits in
commit order. Confirmed messages exist. From then on the topic takes no more messages, even after
restarts.
"""

from dataclasses import replace
from random import Random
from typing import Any, Final

from checks.history import Logs, Outcome, Read, Sent
from clients.admin import Unanswered, ask
from clients.plain import Process
from clients.transacting import FAILURES, Transacting
from sim_broker import BrokerProcess
from sim_scenario import Scenario

from features.feature import Feature, half_way
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import Position
from pybroker.base.errors import PulsarError, TopicTerminated
from pybroker.base.names import TopicName
from pybroker.broker.topics import Topics

NAME: Final = "terminated"
TOPIC: Final = f"persistent://public/default/{NAME}"
CRASH_CHANCE: Final = 0.3


class LastWriter(Transacting):
    """Writes until it is told that the topic takes no more. Each message is sent once."""

    def __init__(self, *args: Any, count: int, sent: dict[str, Sent]) -> None:
        super().__init__(*args)
        self.left = count
        self.sent = sent

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        try:
            producer = await client.create_producer(TOPIC, batching_enabled=False)
            while self.left > 0:
                await self._write_some(client, producer)
                await self.pause(0.3)
        except TopicTerminated as refusal:
            self.note(f"writes no more: {refusal}")

    async def _write_some(self, client: Any, producer: Any) -> None:
        txn, record = await self.begin(client) if self.rng.random() < 0.6 else (None, None)
        try:
            for _ in range(self.rng.randint(1, 4)):
                self.left -= 1
                value = f"{self.name}/{self.incarnation}/{self.left}"
                self.sent[value] = Sent(value, TOPIC, self.name, self.left, txn=record)
                await self.send(producer, self.sent[value], txn)
        except FAILURES:
            if txn is not None:
                await self.abort(txn, record)
            raise
        if txn is not None:
            await self.pause(1.0)
            await self.end(client, txn, record)


class Terminator(Process):
    """Requests the termination until it is answered, and perhaps once more."""

    def __init__(self, *args: Any, broker: BrokerProcess, after_s: float) -> None:
        super().__init__(*args)
        self.broker = broker
        self.after_s = after_s
        self.more = self.rng.randint(0, 1)
        self.answers: list[Position] = []

    async def work(self, client: Any) -> None:
        if not self.answers:
            await self.pause(self.after_s)
        while len(self.answers) <= self.more:
            crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
            try:
                self.answers.append(await ask(self.broker, _terminate, crash))
            except (Unanswered, PulsarError, ManagedLedgerError) as why:
                self.note(f"was not answered: {why}")
            else:
                self.history.counts["terminations"] += 1
            await self.pause(1.0)


async def _terminate(topics: Topics) -> Position:
    topic: Any = await topics.get(TopicName.parse(TOPIC))
    assert topic is not None, "its guard keeps it"
    answer: Position = await topic.terminate()
    return answer


class Terminating(Feature):
    name = "terminating"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: Random) -> Scenario:
        return replace(scenario, guards=(*scenario.guards, (NAME, "guard")))

    def begin(self) -> None:
        self.sent: dict[str, Sent] = {}
        simulation, common = self.simulation, (self.world, self.history)
        simulation.producers.extend(
            LastWriter(*common, f"last-writer-{number}", count=40, sent=self.sent)
            for number in range(self.rng.randint(1, 3))
        )
        self.terminator = Terminator(
            *common, "terminator", broker=self.broker, after_s=self.rng.choice((1.0, 4.0))
        )
        simulation.producers.append(self.terminator)

    def account(self, logs: Logs) -> list[str]:
        log = self.simulation.read_all([TOPIC])[TOPIC]
        there = {read.value for read in log}
        answers = self.terminator.answers
        return [
            *(
                f"LOSS: {value} is not in {TOPIC}"
                for value in self._certain()
                if value not in there
            ),
            *(
                f"BEHIND THE END: {read}, and the end was {answer}"
                for answer in answers
                for read in log
                if read.message_id[:2] > answer and not self._may_come_late(read)
            ),
            *self.simulation.on_a_fresh_node(self._what_is_taken()),
        ]

    def _may_come_late(self, read: Read) -> bool:
        return "commit order" in self.simulation.enabled and self.sent[read.value].txn is not None

    def _certain(self) -> list[str]:
        return [
            value
            for value, sent in self.sent.items()
            if sent.outcome is Outcome.DONE and (sent.txn is None or sent.txn.committed)
        ]

    async def _what_is_taken(self) -> list[str]:
        client = self.simulation.auditor()
        try:
            await client.create_producer(TOPIC)
        except TopicTerminated:
            return []
        finally:
            await client.close()
        return [f"TAKES MORE: {TOPIC} was terminated"]


FEATURES: Final = (Terminating,)
