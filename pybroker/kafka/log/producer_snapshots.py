"""The idempotent producers of one log: recovered from a snapshot and the entries after it.

Entries are not deleted before a snapshot covers them. One is written after so many batches that the
scan of the next start is short, and when the topic is closed.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.kafka_keys import producers_key
from pybroker.broker.persistent.topic import Topic
from pybroker.kafka.conversion.entries import batch_start
from pybroker.kafka.producers.partition_producers import (
    PartitionProducers,
    decode,
    encode_head,
    encode_producer,
)
from pybroker.kafka.producers.sequences import WINDOW, ProducerSequences
from pybroker.kafka.records.batch import checked
from pybroker.kafka.records.errors import BadRecords
from pybroker.wire.message_metadata import BadEntry, parse_metadata

_INTERVAL: Final = 1000  # batches
_BATCHES_A_PRODUCER: Final = 4  # a larger snapshot is written less often
_READ_ENTRIES: Final = 500
_READ_BYTES: Final = 1024 * 1024
_PRODUCERS_A_TURN: Final = 200
_WITH_ALL_BATCHES: Final = 384 * 1024  # bytes; the others of 10,000 producers take some 500,000


class ProducerSnapshots:
    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._key = producers_key(topic.ledger.name)
        self._since = EARLIEST.after  # where the scan of the next start begins
        self._batches = 0  # since the last snapshot
        self._writing = False
        topic.ledger.trimmer.keep(self._kept_from)
        topic.ledger.on_visit += (self._visited,)
        self._producers: PartitionProducers | None = None  # once recovered

    def _visited(self) -> None:
        """Some time after the topic was in use: what was written may be deleted from now on."""
        if self._producers is not None and self._batches and not self._writing:
            self._begin(self._producers)

    def _begin(self, producers: PartitionProducers) -> None:
        self._topic.tasks.start(self.write(producers), "snapshot of Kafka's producers")

    def _kept_from(self) -> Position:
        return self._since

    async def recover(self) -> PartitionProducers:
        """Raises ManagedLedgerError if the snapshot or what follows it cannot be read."""
        metadata, ledger = self._topic.metadata, self._topic.ledger
        await metadata.refresh(self._key)
        producers = PartitionProducers()
        if (stored := metadata.get(self._key)) is not None:
            self._since, producers = decode(stored.value, ledger.name)
        position, end = self._since, ledger.last_confirmed
        while run := await ledger.read_whole(position, end, _READ_ENTRIES, _READ_BYTES):
            read_producers(run, producers)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
            await asyncio.sleep(0)  # reads from memory do not yield
        producers.expire(self._topic.clock.now_ms())
        self._producers = producers
        return producers

    def stored(self, producers: PartitionProducers) -> None:
        """Call for each batch that has become durable."""
        self._batches += 1
        is_due = self._batches >= max(_INTERVAL, _BATCHES_A_PRODUCER * len(producers))
        if is_due and not self._writing:
            self._begin(producers)

    async def write(self, producers: PartitionProducers) -> None:
        """Durable when it returns. Raises ManagedLedgerError; BadVersion if another broker has
        taken over the topic: its snapshot stays.
        """
        batches, self._writing, self._batches = self._batches, True, 0
        try:
            producers.expire(self._topic.clock.now_ms())
            position = self._topic.ledger.last_confirmed.after  # first: see encode_head
            parts = [encode_head(position), *await encoded(list(producers))]
            value, ledger = b"".join(parts), self._topic.ledger
            await self._topic.metadata.put(self._key, value, only_while=ledger.still_owned)
            self._since = position
        except (ManagedLedgerError, asyncio.CancelledError):
            self._batches += batches  # to be written later
            raise
        finally:
            self._writing = False

    async def close(self, producers: PartitionProducers) -> None:
        if self._batches and not self._topic.ledger.closed:
            await self.write(producers)


async def encoded(producers: Sequence[ProducerSequences]) -> list[bytes]:
    """The producers in their order, the longest idle first. Those that are idle have only their
    last batch if all of them would take more than a node of ZooKeeper's.
    """
    pace, found, size = Pace(_PRODUCERS_A_TURN), list[bytes](), 0
    for each in reversed(producers):
        found.append(encode_producer(each, WINDOW if size < _WITH_ALL_BATCHES else 1))
        size += len(found[-1])
        await pace.step()
    return found[::-1]


def read_producers(run: EntryRun, producers: PartitionProducers) -> None:
    """Count the run's batches of idempotent producers."""
    for entry in run.entries:
        if start := batch_start(entry):
            try:
                header = checked(entry[start:])
                if header.producer_id >= 0 and not header.is_control:
                    time_ms = parse_metadata(entry).publish_time
                    producers.read(header, header.base_offset, time_ms)
            except (BadRecords, BadEntry):
                continue  # a Pulsar client wrote something that looks like a batch
