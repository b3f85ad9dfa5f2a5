"""A topic's log as a Kafka partition: appends, reads, who waits. One object per loaded topic.

The caller has checked a batch. Its sequence is reserved, then it is appended, and answered once it
is durable. A batch that was sent again is answered with the offset of the first. An append that
fails gives its sequence back.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.base.names import TxnId
from pybroker.broker.persistent.entry_metadata import EntryStamps
from pybroker.broker.persistent.producers import Producer
from pybroker.broker.persistent.publishing import Published
from pybroker.broker.persistent.topic import Topic
from pybroker.kafka.conversion.entries import kafka_entry
from pybroker.kafka.log.append_time import AppendTime
from pybroker.kafka.log.offset_table import offset_table
from pybroker.kafka.log.offsets import Offsets
from pybroker.kafka.log.producer_snapshots import ProducerSnapshots
from pybroker.kafka.log.publisher import Publisher
from pybroker.kafka.producers.partition_producers import PartitionProducers
from pybroker.kafka.producers.sequences import Answer, SentBatch
from pybroker.kafka.records.batch import NO_TIMESTAMP, BatchHeader, stamped
from pybroker.kafka.records.errors import TooManyBytes

LEADER_EPOCH: Final = 0
Changed = Callable[["PartitionLog"], None]


@dataclass(slots=True)
class _Run:
    """Implements PublishRun: one batch."""

    entries: list[bytes]
    message_counts: list[int]
    txn_id: TxnId | None


class PartitionLog:
    """Implements LogView. Get it by `partition_log`; await `opened` before anything else."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.offsets: Offsets
        self.publisher = Publisher(topic)
        self._append_time = AppendTime(topic)
        self.waiting: dict[Changed, None] = {}  # called when there may be more to read
        self.kept: dict[str, Any] = {}  # what share groups know of it, by their ids
        self._is_open = self._closed = False
        self._snapshots: ProducerSnapshots | None = None
        self._producers: PartitionProducers | None = None
        self._opening: asyncio.Task[None] | None = None
        self._recovering: asyncio.Task[None] | None = None

    async def opened(self) -> "PartitionLog":
        """Returns when the topic has offsets. Raises ManagedLedgerError, ServiceNotReady."""
        if not self._is_open:
            if self._opening is None or self._opening.done():
                self._opening = self.topic.tasks.start(self._open(), "giving offsets")
            await asyncio.shield(self._opening)
        return self

    async def _open(self) -> None:
        self.offsets = Offsets(self.topic.ledger, await offset_table(self.topic))
        self._is_open = True

    # -- LogView

    def notify(self) -> None:
        for changed in list(self.waiting):
            changed(self)

    async def close(self) -> None:
        self.discard()
        if self._snapshots is not None and self._producers is not None:
            await self._snapshots.close(self._producers)

    async def catch_up(self) -> None:
        if self._snapshots is not None and self._producers is not None:
            await self._snapshots.write(self._producers)

    def discard(self) -> None:
        self._closed = True
        self.notify()
        self.waiting.clear()

    @property
    def closed(self) -> bool:
        return self._closed or self.topic.closed

    # -- what may be read

    def limit(self, committed_only: bool) -> Position:
        """The last entry that may be read."""
        topic = self.topic
        return topic.max_read_position if committed_only else topic.max_uncommitted_position

    async def end_offset(self, committed_only: bool) -> int:
        """The offset after the last message that may be read. Raises ManagedLedgerError."""
        return await self.offsets.end_after(self.limit(committed_only))

    # -- append

    async def producers(self) -> PartitionProducers:
        """The idempotent producers, recovered at the first call. Raises ManagedLedgerError."""
        if self._producers is None:
            if self._recovering is None or self._recovering.done():
                self._recovering = self.topic.tasks.start(self._recover(), "Kafka's producers")
            await asyncio.shield(self._recovering)
        assert self._producers is not None
        return self._producers

    async def _recover(self) -> None:
        self._snapshots = self._snapshots or ProducerSnapshots(self.topic)
        self._producers = await self._snapshots.recover()

    def answered(
        self, header: BatchHeader, producers: PartitionProducers, answer: Answer
    ) -> int | None:
        """For the copy of a batch that was sent before: `answer` is called as for that one, and the
        time of `append` is returned. None if it is no copy. Raises ProducerRefused.
        """
        if (copy := producers.check(header)) is None:
            return None
        copy.when_durable(answer)
        return copy.time_ms if self._append_time.is_on else NO_TIMESTAMP

    def append(
        self,
        batch: bytes,
        header: BatchHeader,
        producer: Producer,
        producers: PartitionProducers | None,
        answer: Answer,
        txn_id: TxnId | None = None,
    ) -> int:
        """`answer` is called once the batch is durable, or could not be stored; at once for a copy.
        `producers` are None for a batch without a producer id. Returns the time that all records
        get, or NO_TIMESTAMP: they have their own.

        Raises ProducerRefused, PulsarError.
        """
        told_ms = None if producers is None else self.answered(header, producers, answer)
        if told_ms is not None:
            return told_ms
        at_append = self._append_time.is_on
        stamps = self.topic.ledger.interceptor
        assert isinstance(stamps, EntryStamps) and stamps.index is not None
        base_offset, now_ms = stamps.index + 1, self.topic.clock.now_ms()
        if at_append:
            batch = stamped(batch, now_ms)
        entry = kafka_entry(batch, header, base_offset, LEADER_EPOCH, now_ms)
        self._check(entry)
        sent = None
        if producers is not None:
            sent = producers.reserve(header, base_offset, now_ms)
        self._count(producer, header.record_count, len(entry))
        run = _Run([entry], [header.record_count], txn_id)
        done = self._done(run, base_offset, answer)
        if sent is not None and producers is not None:
            done = self._settling(header.producer_id, sent, producers, done)
        self.topic.publish(producer, run, done)
        return now_ms if at_append else NO_TIMESTAMP

    def _check(self, entry: bytes) -> None:
        """Raises PulsarError or TooManyBytes, if the topic's policies do not allow the entry."""
        if self.topic.gate is None:
            return
        for _, _, refusal in self.topic.gate.pieces((entry,)):
            if isinstance(refusal, NotAllowed):
                raise TooManyBytes(str(refusal))
            if refusal is not None:
                raise refusal

    def _count(self, producer: Producer, messages: int, size_bytes: int) -> None:
        producer.messages_in += messages
        producer.bytes_in += size_bytes
        self.topic.bytes_in += size_bytes

    def _done(self, run: _Run, base_offset: int, answer: Answer) -> Published:
        writes, clock = self.topic.writes, self.topic.clock
        began_s, size_bytes = clock.monotonic_s(), len(run.entries[0])

        def done(position: Position | None, error: Exception | None) -> None:
            if position is None:
                answer(None, error)
                return
            writes.durable(run.entries, size_bytes, clock.monotonic_s() - began_s)
            answer(base_offset, None)

        return done

    def _settling(
        self,
        producer_id: int,
        sent: SentBatch,
        producers: PartitionProducers,
        done: Published,
    ) -> Published:
        def settled(position: Position | None, error: Exception | None) -> None:
            if position is None:
                producers.failed(producer_id, sent, error or PulsarError("it was not stored"))
            else:
                producers.durable(producer_id, sent)
                if self._snapshots is not None:
                    self._snapshots.stored(producers)
            done(position, error)

        return settled


def partition_log(topic: Topic) -> PartitionLog:
    """The topic's view for Kafka's clients, which stays with the topic."""
    if topic.view is None:
        topic.view = PartitionLog(topic)
    assert isinstance(topic.view, PartitionLog)
    return topic.view
