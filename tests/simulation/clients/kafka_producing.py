"""An idempotent producer of Kafka's protocol: up to five batches on their way, in order.

It sends again whatever was not answered, first on the same connection, then on others. A life that
remembers its id and its sequences goes on where the one before it was, as an application may that
keeps them with its own state; otherwise it begins as a new producer, as Kafka's clients do, and
leaves the rest to its fate.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from checks.history import Outcome, Sent

from clients.kafka_peer import KafkaClient, KafkaPeer
from clients.kafka_words import (
    AGAIN,
    PRODUCE,
    PRODUCE_VERSION,
    Answer,
    Key,
    Place,
    answer_to_produce,
    batch_of,
    new_producer_id,
    produce_body,
)
from clients.plain import Process
from pybroker.kafka.errors import ErrorCode

WINDOW: Final = 5
_STRIKES: Final = 5  # rounds in which the oldest batch is out of order


@dataclass(slots=True, eq=False)
class Batch:
    first: int  # sequence
    sent: list[Sent]
    data: bytes
    offset: int | None = None  # the answer


class KafkaProcess(Process):
    """A process whose client speaks Kafka's protocol."""

    def new_client(self) -> Any:
        return KafkaClient()

    def unexpected(self, code: ErrorCode, what: str) -> None:
        """An answer that no client should get."""
        self.history.failures.append(f"UNEXPECTED ANSWER: {code.name} for {what} of {self.name}")


class IdempotentProducer(KafkaProcess):
    def __init__(
        self,
        *args: Any,
        place: Place,
        count: int,
        records: int,
        remembers: bool,
        deduplicated: bool,
        disk_may_fail: bool,
        about_to: Callable[[str], None],
    ) -> None:
        """`records`: at most in a batch. `about_to` is told of each Produce."""
        super().__init__(*args)
        self.place = place
        self.left = count
        self.records = records
        self.remembers = remembers
        self.deduplicated = deduplicated
        self.disk_may_fail = disk_may_fail
        self.about_to = about_to
        self.stored: list[Batch] = []  # with the offsets that the broker said
        self._number = 0
        self._key: Key | None = None
        self._sequence = 0
        self._waiting: list[Batch] = []  # neither stored nor given up, in order
        self._strikes = 0
        self._producers = 0  # ids that it has had

    def crash(self, down_s: float) -> None:
        super().crash(down_s)
        if not self.remembers:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._key, self._waiting, self._sequence, self._strikes = None, [], 0, 0

    async def work(self, client: Any) -> None:
        while self._waiting or self.left:
            if self._key is None and not await self._get_id(client):
                continue
            await self._send_all(await client.peer())
            await self.pause(0.5)

    async def _get_id(self, client: Any) -> bool:
        found = await new_producer_id(client)
        if isinstance(found, Key):
            self._key, self._producers = found, self._producers + 1
            return True
        if found not in AGAIN:
            self.unexpected(found, "an id")
        await self.pause(1.0)
        return False

    async def _send_all(self, peer: KafkaPeer) -> None:
        """Until something has to be sent again, or the producer rests for a moment."""
        on_the_way: deque[tuple[Batch, Any]] = deque()
        again = deque(self._waiting)
        window = 1 if self._strikes else self.rng.randint(1, WINDOW)
        resting = self.rng.randint(3, 12)  # batches
        while again or on_the_way or (self.left and resting):
            while len(on_the_way) < window and (again or (self.left and resting)):
                resting -= not again and resting > 0
                batch = again.popleft() if again else self._next_batch()
                on_the_way.append((batch, self._post(peer, batch)))
            batch, answer = on_the_way.popleft()
            if not self._settle(batch, answer_to_produce(await peer.answer_of(answer))):
                for batch, answer in on_the_way:
                    self._settle(batch, answer_to_produce(await peer.answer_of(answer)))
                return

    def _next_batch(self) -> Batch:
        assert self._key is not None
        sent = [self._message() for _ in range(min(self.left, self.rng.randint(1, self.records)))]
        self.left -= len(sent)
        padding = b"|" + bytes(self.rng.choice((0, 10, 700)))
        values = [each.value.encode() + padding for each in sent]
        keys = [f"key-{each.number % 3}" for each in sent]
        batch = Batch(self._sequence, sent, batch_of(values, keys, self._key, self._sequence))
        self._sequence += len(sent)
        self._waiting.append(batch)
        return batch

    def _message(self) -> Sent:
        self._number += 1
        sender = f"{self.name}.{self._producers}"
        value, deduplicated = f"{self.name}/{self._number}", self.deduplicated
        return self.history.send(
            Sent(value, self.place.topic, sender, self._number, deduplicated=deduplicated)
        )

    def _post(self, peer: KafkaPeer, batch: Batch) -> "asyncio.Future[Any]":
        for sent in batch.sent:
            sent.asked = sent.asked or self.history.turn()
        self.about_to("Produce")
        return peer.post(PRODUCE, PRODUCE_VERSION, produce_body(self.place, batch.data))

    def _settle(self, batch: Batch, answer: Answer) -> bool:
        """False: it has to be sent again, and those after it, too."""
        if answer.code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._waiting.remove(batch)
            self._strikes = 0
            if answer.code is ErrorCode.NONE:
                batch.offset = answer.offset
                self.stored.append(batch)
            for sent in batch.sent:
                sent.outcome, sent.answered = Outcome.DONE, self.history.turn()
            return True
        self.history.counts[f"batches answered with {answer.code.name}"] += 1
        self.note(f"{batch.sent[0].value}, sequence {batch.first}: {answer.code.name}")
        if answer.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if batch is self._waiting[0]:
                self._out_of_order()
        elif answer.code not in AGAIN:
            self.unexpected(answer.code, f"{batch.sent[0].value}")
        return False

    def _out_of_order(self) -> None:
        """The oldest batch does not follow what the broker knows."""
        self._strikes += 1
        if self._strikes < _STRIKES:
            return
        if not self.disk_may_fail:
            value = self._waiting[0].sent[0].value
            self.history.failures.append(f"OUT OF ORDER: {value} follows all that was stored")
        self.history.counts["producers that could not go on"] += 1
        self._begin_anew()
