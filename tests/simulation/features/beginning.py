"""Subscriptions that begin at the end of a topic, or seek there, while transactions are open on it:
they get all of each, because the place is before the first message that may not be read yet.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from checks.history import Logs, Read, Txn
from clients.plain import Process, read_of
from clients.transacting import FAILURES, TxnProducer

from features.feature import Feature
from pybroker.client import aio
from pybroker.client.errors import Timeout


class SlowProducer(TxnProducer):
    async def _transact(self, client: Any, producers: dict[str, Any]) -> None:
        txn, record = await self.begin(client)
        try:
            for _ in range(self.rng.randint(2, 5)):
                await self._publish_one(producers, txn, record)
                await self.pause(1.0)
        except FAILURES as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
        else:
            await self.end(client, txn, record)


@dataclass(frozen=True, slots=True)
class Begun:
    how: str
    turn: int  # when it was answered
    first: Read  # the first message that it was given


class Newcomer(Process):
    def __init__(self, *args: Any, topics: list[str]) -> None:
        super().__init__(*args)
        self.topics = topics
        self.begun: list[Begun] = []

    async def work(self, client: Any) -> None:
        while not self.stopping:
            await self._begin(client, self.rng.random() < 0.5)
            await self.pause(1.0)

    async def _begin(self, client: Any, seeks: bool) -> None:
        begins = aio.InitialPosition.Earliest if seeks else aio.InitialPosition.Latest
        consumer = await client.subscribe(
            self.rng.choice(self.topics),
            f"{self.name}-{self.incarnation}",
            initial_position=begins,
        )
        if seeks:
            await consumer.seek(aio.MessageId.latest)
        how, turn = "a seek" if seeks else "a subscription", self.history.turn()
        self.history.counts[f"beginnings at the end: {how}"] += 1
        try:
            message = await consumer.receive(timeout_millis=1000)
        except Timeout:
            pass
        else:
            self.begun.append(Begun(how, turn, read_of(message)))
        await consumer.unsubscribe()


class Beginning(Feature):
    name = "beginning at the end"

    def begin(self) -> None:
        topics = self.simulation.partitions_of(self.simulation.scenario.topics)
        self.newcomers = [
            Newcomer(self.world, self.history, f"newcomer-{number}", topics=topics)
            for number in range(3)
        ]
        self.simulation.others += self.newcomers
        for number in range(2):
            topic = self.rng.choice(self.simulation.scenario.topics)
            self.simulation.producers.append(
                SlowProducer(
                    self.world, self.history, f"slow-{number}", topics=[topic],
                    count=self.rng.choice((3, 10)), batching=self.simulation.scenario.batching,
                )
            )  # fmt: skip

    def account(self, logs: Logs) -> list[str]:
        return list(self._parts(logs))

    def _parts(self, logs: Logs) -> Iterator[str]:
        """Of transactions that had surely not ended then. All that comes after the first message is
        given, too: others check that.
        """
        spans: dict[tuple[str, Txn], list[Read]] = defaultdict(list)
        for read in (read for log in logs.values() for read in log):
            sent = self.history.sent.get(read.value)
            if sent is not None and sent.txn is not None:
                spans[read.topic, sent.txn].append(read)
        for (topic, txn), reads in spans.items():
            start, end = reads[0].message_id, reads[-1].message_id
            for begun in (each for newcomer in self.newcomers for each in newcomer.begun):
                was_open = txn.commit_asked is not None and txn.commit_asked > begun.turn
                within = begun.first.topic == topic and start < begun.first.message_id <= end
                if was_open and within:
                    yield f"PART OF A TRANSACTION: {begun} is within {txn.name}"


FEATURES: Final = (Beginning,)
