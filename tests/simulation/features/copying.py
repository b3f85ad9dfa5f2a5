"""One message sent in many copies under deduplication: in different transactions, or in none.

A job dies, comes back and resends its batch while the transaction of its earlier life is open.
Whatever happens to the transactions: of a message with a valid receipt exactly one copy is visible,
and of one without a receipt none.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from checks.history import Logs, Outcome, Txn
from clients.transacting import FAILURES, Transacting
from sim_scenario import Scenario

from features.feature import Feature

TOPIC: Final = "persistent://public/default/copies"


@dataclass(slots=True)
class Copy:
    txn: Txn | None
    outcome: Outcome = Outcome.UNKNOWN

    @property
    def promised(self) -> bool:
        return self.outcome is Outcome.DONE and (self.txn is None or self.txn.committed)

    @property
    def possible(self) -> bool:
        if self.outcome is Outcome.REFUSED:
            return False
        return self.txn is None or not self.txn.surely_aborted


@dataclass(slots=True)
class Numbered:
    number: int
    value: str
    copies: list[Copy] = field(default_factory=list)

    @property
    def stored(self) -> bool:
        """The broker has accepted it once: later numbers may be sent."""
        return any(copy.outcome is Outcome.DONE for copy in self.copies)


class Copier(Transacting):
    """Sends a number only after the previous one was accepted, as deduplication requires.

    A copy waits for the outcome of an open copy, perhaps for longer than its own transaction lives.
    Then the process begins again with the first message. Once faults have ended, it does not resend
    accepted messages; otherwise bad luck might repeat that forever.
    """

    healed = False

    def __init__(self, *args: Any, count: int) -> None:
        super().__init__(*args)
        self.messages = [Numbered(number, f"{self.name}/{number}") for number in range(count)]
        self.open: list[tuple[Any, Txn]] = []  # of this life, still to be ended

    async def work(self, client: Any) -> None:
        self.open.clear()
        producer = await client.create_producer(TOPIC, producer_name=self.name)
        for message in self.messages:
            while not message.stored:
                await self._send_copy(client, producer, message)
            while not self.healed and self.rng.random() < 0.4:
                await self._send_copy(client, producer, message)
            if self.rng.random() < 0.4:
                await self._end_one(client)
            await self.pause(0.2)
        while self.open:
            await self._end_one(client)
        await self._send_the_aborted_again(client, producer)
        await producer.close()

    async def _send_copy(self, client: Any, producer: Any, message: Numbered) -> None:
        txn, record = await self._some_transaction(client)
        copy = Copy(record)
        message.copies.append(copy)
        self.history.counts["copies sent"] += 1
        data = message.value.encode() + b"|" + bytes(self.rng.choice((0, 300)))
        try:
            await producer.send(data, txn=txn, sequence_id=message.number)
        except FAILURES as error:
            self.note(f"copy of {message.value} in {record and record.name}: {error!r}")
            if record is not None:
                self.open = [pair for pair in self.open if pair[1] is not record]
                await self.abort(txn, record)
            raise
        copy.outcome = Outcome.DONE

    async def _some_transaction(self, client: Any) -> tuple[Any, Txn | None]:
        """None, an open transaction, or a new one."""
        choice = self.rng.random()
        if choice < 0.25:
            return None, None
        if self.open and choice < 0.5:
            return self.rng.choice(self.open)
        pair = await self.begin(client)
        self.open.append(pair)
        return pair

    async def _end_one(self, client: Any) -> None:
        if not self.open:
            return
        txn, record = self.open.pop(self.rng.randrange(len(self.open)))
        fate = self.rng.choice(("commit", "abort", "abort", "leave"))
        if fate == "commit":
            await self.commit(txn, record)
        elif fate == "abort":
            await self.abort(txn, record)

    async def _send_the_aborted_again(self, client: Any, producer: Any) -> None:
        """Sends all messages that surely do not exist, in one transaction."""
        lost = [m for m in self.messages if not any(copy.possible for copy in m.copies)]
        if not lost:
            return
        txn, record = await self.begin(client)
        for message in lost:
            copy = Copy(record)
            message.copies.append(copy)
            await producer.send(message.value.encode(), txn=txn, sequence_id=message.number)
            copy.outcome = Outcome.DONE
        await self.commit(txn, record)


class Copying(Feature):
    name = "copying"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, deduplication=True)

    def begin(self) -> None:
        count = self.rng.choice((4, 12, 20))
        names = [f"copier-{number}" for number in range(self.rng.randint(1, 2))]
        self.copiers = [Copier(self.world, self.history, name, count=count) for name in names]
        self.simulation.producers += self.copiers

    def heal(self) -> None:
        for copier in self.copiers:
            copier.healed = True

    def account(self, logs: Logs) -> list[str]:
        (log,) = self.simulation.read_all([TOPIC]).values()
        found = []
        for message in (m for copier in self.copiers for m in copier.messages):
            visible = sum(read.value == message.value for read in log)
            if visible > 1:
                found.append(f"DUPLICATE COPY: {message.value} is {visible} times in {TOPIC}")
            elif visible and not any(copy.possible for copy in message.copies):
                found.append(f"ABORTED COPY: {message.value} can be read")
            elif not visible and any(copy.promised for copy in message.copies):
                found.append(f"LOST COPY: {message.value} was acknowledged, and no copy is there")
        return found


FEATURES: Final = (Copying,)
