"""The producer of one segment, the messages that wait for it, and those that must leave it.

    opening ──▶ ready ──▶ retired ──last answer──▶ settled
                             its messages go where the layout says then

A segment that is sealed takes no more messages. What it had taken is answered before messages of
the same keys go to its successors: so they stay in order.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from pybroker.base.errors import TopicNotFound, TopicTerminated
from pybroker.base.names import TxnId
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.retry import not_final, retrying
from pybroker.client.errors import PulsarException
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import ProducerOptions
from pybroker.client.producing.entry_buckets import EntryBuckets
from pybroker.client.producing.topic_producer import TopicProducer
from pybroker.client.scalable.layout import Segment
from pybroker.client.transactions.transaction import Publisher, Transaction

# A segment that is sealed, or was pruned afterwards.
_GONE: Final = (TopicTerminated, TopicNotFound)


class WithinOperation:
    """Implements Publishing. A message may change its segment, within one operation."""

    def __init__(self, txn: Transaction) -> None:
        self._txn = txn

    @property
    def txn_id(self) -> TxnId:
        return self._txn.txn_id

    def publish(
        self, publisher: Publisher, done: Done, joined: Callable[[Exception | None, Done], None]
    ) -> None:
        self._txn.enlist(publisher, lambda error: joined(error, done))

    def refused(self, error: Exception) -> None:
        """The operation ends with the error."""

    async def joined(self, topic: str) -> None:
        await self._txn.joined(topic)


@dataclass(slots=True, eq=False)
class Sent:
    """A message of the application. `number` counts them in order."""

    number: int
    message: Outgoing
    within: WithinOperation | None
    done: Done


class Owner(Protocol):
    """What a segment's sender tells the producer of the topic."""

    def answered(self, sent: Sent, stored: MessageId | None, error: Exception | None) -> None: ...

    def advance(self) -> None:
        """It has opened, failed or settled."""
        ...

    def look_again(self) -> None: ...


def _ignore(_: int) -> None:
    """The limit is the whole producer's."""


class SegmentSender:
    def __init__(
        self,
        cluster: Cluster,
        segment: Segment,
        options: ProducerOptions,
        owner: Owner,
    ) -> None:
        self.segment = segment
        buckets = None if segment.is_ordinary else EntryBuckets(segment.splits)
        self.producer = TopicProducer(cluster, segment.topic, options, _ignore, buckets)
        self.waiting: list[Sent] = []
        self.is_open = False
        self.is_ready = False
        self.is_retired = False
        self.failure: Exception | None = None
        self._unanswered = 0
        self._cluster = cluster
        self._owner = owner
        self._task: asyncio.Task[Any] | None = None

    def start(self, patient: bool) -> None:
        """Opens it in the background; `patient`: for as long as it takes."""
        self._task = self._cluster.tasks.start(self._open(patient), f"open {self.segment.topic}")

    async def _open(self, patient: bool) -> None:
        try:
            if patient:
                await retrying(
                    self.producer.open,
                    self._cluster.rng,
                    passes=not_final,
                    timeout_s=None,
                    what=f"Opening {self.segment.topic}",
                )
            else:
                await self.producer.open()
            self.is_open = True
        except TopicTerminated:
            self.is_retired = True  # a layout that says so is on its way
        except TopicNotFound:
            self.is_retired = True
            self._owner.look_again()
        except Exception as error:
            self.failure = error
        self._owner.advance()

    @property
    def is_settled(self) -> bool:
        return self.is_retired and not self._unanswered

    def send(self, sent: Sent) -> None:
        if self.is_ready and not self.is_retired and not self.waiting:
            self._submit(sent)
        else:
            self.waiting.append(sent)

    def begin(self) -> None:
        """Nothing that came before is under way any more: sends what waits."""
        self.is_ready = True
        waiting, self.waiting = self.waiting, []
        for sent in sorted(waiting, key=lambda each: each.number):
            self.send(sent)
        if waiting:
            self.producer.flush_batch()  # a commit may wait for them

    def _submit(self, sent: Sent) -> None:
        self._unanswered += 1
        self.producer.submit(sent.message, sent.within, partial(self._on_answer, sent))

    def _on_answer(self, sent: Sent, stored: MessageId | None, error: Exception | None) -> None:
        self._unanswered -= 1
        if isinstance(error, _GONE):  # not stored
            if isinstance(error, TopicNotFound) and not self.is_retired:
                self._owner.look_again()
            self.is_retired = True
            self.waiting.append(sent)
        else:
            self._owner.answered(sent, stored, error)
        if self.is_settled:
            self._owner.advance()

    def retire(self) -> None:
        """Sends nothing more; closes the producer once everything is answered."""
        self.is_retired = True
        self._cluster.tasks.start(self._leave(), f"close {self.segment.topic}")

    async def _leave(self) -> None:
        with suppress(PulsarException):
            await self.producer.flush()
        await self.close()
        self._owner.advance()

    async def close(self) -> None:
        if self._task is not None and not self.is_open:
            self._task.cancel()
        with suppress(PulsarException):
            await self.producer.close()
