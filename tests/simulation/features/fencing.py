"""Workers that share a transactional id: each new session fences the others unnoticed.

They publish plainly and in transactions, stall for a while, and come back as zombies. Messages that
a worker sends after a newer one was granted must never be visible, and its open transactions are
aborted. The broker crashes around the start of a newer session. A worker that learns that it was
fenced begins again, until its work is done.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from checks.history import Logs, Sent, Txn
from clients.plain import new_client
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import Feature, half_way
from pybroker.base import errors

TOPICS: Final = ("fenced-0", "fenced-1")


class Epochs:
    """Epochs that workers were told, with their sessions: each epoch belongs to one session."""

    def __init__(self) -> None:
        self.heard: dict[tuple[str, int], str] = {}
        self.newest: dict[str, int] = {}
        self.broken: list[str] = []

    def hear(self, transactional_id: str, epoch: int, session: str) -> bool:
        """Records the epoch; True if it is the newest so far."""
        other = self.heard.setdefault((transactional_id, epoch), session)
        if other != session:
            self.broken.append(
                f"FENCED WRITE: {other} and {session} both hold {transactional_id!r} as {epoch}"
            )
        is_newest = epoch > self.newest.get(transactional_id, 0)
        if is_newest:
            self.newest[transactional_id] = epoch
        return is_newest


class Worker(Transacting):
    def __init__(
        self,
        *args: Any,
        transactional_id: str,
        count: int,
        epochs: Epochs,
        about_to_begin: Callable[[], None],
    ) -> None:
        super().__init__(*args)
        self.transactional_id = transactional_id
        self._left = count
        self._epochs = epochs
        self._about_to_begin = about_to_begin
        self._numbers = dict.fromkeys(TOPICS, 0)
        self._lives = 0  # counts the lives of its clients

    def new_client(self) -> Any:
        return new_client(self.world, self.rng, transactional_id=self.transactional_id)

    async def work(self, client: Any) -> None:
        self.session = None
        self._lives += 1
        self._about_to_begin()
        producers = await self.open(client)
        if not self._takes_over(client):
            self.note("was fenced before it heard that it was the newest")
            return
        while self._left and not self.stopping:
            self._left -= 1
            try:
                await self._work_once(client, producers)
            except errors.ProducerFenced as error:
                self.history.counts["fenced workers"] += 1
                self.note(f"fenced: {error}")
                raise

    async def open(self, client: Any) -> dict[str, Any]:
        """The producers of its next life, by topic."""
        return {topic: await client.create_producer(topic) for topic in TOPICS}

    def _takes_over(self, client: Any) -> bool:
        epoch, session = client._cluster.session._epoch, f"{self.name} {self._lives}"
        self.note(f"hears epoch {epoch}")
        if not self._epochs.hear(self.transactional_id, epoch, session):
            return False
        self.session = self.history.take_over(self.transactional_id)
        return True

    async def _work_once(self, client: Any, producers: dict[str, Any]) -> None:
        if self.rng.random() < 0.4:
            await self._publish(producers, None)
        else:
            await self._transact(client, producers)
        stalls = self.rng.random() < 0.3  # it does not notice what happens meanwhile
        await self.pause(4.0 if stalls else 0.3)

    async def _transact(self, client: Any, producers: dict[str, Any]) -> None:
        txn, record = await self.begin(client)
        sends = [self._publish(producers, (txn, record)) for _ in range(self.rng.randint(1, 3))]
        results = await asyncio.gather(*sends, return_exceptions=True)
        await self.pause(self.rng.choice((0.0, 0.3, 3.0)))
        failures = [result for result in results if isinstance(result, BaseException)]
        if not failures:
            await self.end(client, txn, record)
            return
        self.note(f"{record.name} failed: {failures[0]!r}")
        await self.abort(txn, record)
        raise failures[0]

    async def _publish(self, producers: dict[str, Any], part: tuple[Any, Txn] | None) -> None:
        txn, record = part or (None, None)
        topic = self.rng.choice(list(producers))
        number = self._numbers[topic] = self._numbers[topic] + 1
        sender = f"{self.name}-{topic}"
        life = f"{sender}.{self.incarnation}.{self._lives}"
        sent = self.history.send(Sent(f"{sender}/{number}", topic, life, number, txn=record))
        try:
            await self.send(producers[topic], sent, txn)
        except FAILURES as error:
            self.note(f"{sent.value}: {error!r}")
            raise


class Fencing(Feature):
    name = "fencing"
    topics = TOPICS
    worker = Worker

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        guards = tuple((topic, "guard") for topic in TOPICS)
        return replace(scenario, guards=(*scenario.guards, *guards))

    def begin(self) -> None:
        self.crashes = self.rng.choice((0, 1, 2, 4))
        self.epochs = Epochs()
        ids = self.rng.choice((("work",), ("work",), ("work", "other work")))
        self.simulation.producers += [
            self.worker(
                self.world,
                self.history,
                f"worker-{name}-{number}",
                transactional_id=name,
                count=self.rng.choice((3, 8)),
                epochs=self.epochs,
                about_to_begin=self._maybe_crash,
            )
            for name in ids
            for number in range(self.rng.choice((2, 2, 3)))
        ]

    def _maybe_crash(self) -> None:
        if self.crashes and self.broker.serving and self.rng.random() < 0.3:
            self.crashes -= 1
            self.count("crashes at a newer session")
            self.broker.crash(half_way(self.rng))

    def heal(self) -> None:
        self.crashes = 0

    def account(self, logs: Logs) -> list[str]:
        return self.epochs.broken


FEATURES: Final = (Fencing,)
