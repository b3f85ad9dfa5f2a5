"""The idempotent producers of one partition, and their snapshot.

A producer that nothing is known of may begin at any sequence: its state has expired, or the broker
forgot the longest idle one because there were too many. `read` and the snapshot together give the
same state after a crash: a batch that the snapshot has, too, changes nothing.
"""

from collections.abc import Iterator
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.position import Position
from pybroker.kafka.producers.sequences import WINDOW, ProducerSequences, SentBatch
from pybroker.kafka.records.batch import BatchHeader

EXPIRATION_MS: Final = 7 * 24 * 3600 * 1000
MOST_PRODUCERS: Final = 10_000
_FORMAT: Final = 1


class PartitionProducers:
    """Ordered by their last batch, the longest idle first."""

    __slots__ = ("_by_id", "_most")

    def __init__(self, most_producers: int = MOST_PRODUCERS) -> None:
        self._by_id: dict[int, ProducerSequences] = {}
        self._most = most_producers

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ProducerSequences]:
        return iter(self._by_id.values())

    def get(self, producer_id: int) -> ProducerSequences | None:
        return self._by_id.get(producer_id)

    def check(self, header: BatchHeader) -> SentBatch | None:
        """As `ProducerSequences.check`."""
        known = self._by_id.get(header.producer_id)
        return None if known is None else known.check(header)

    def reserve(self, header: BatchHeader, base_offset: int, time_ms: int) -> SentBatch:
        return self._touched(header).reserve(header, base_offset, time_ms)

    def durable(self, producer_id: int, batch: SentBatch) -> None:
        known = self._by_id.get(producer_id)
        if known is None:  # it was forgotten meanwhile
            batch.settle(None)
        else:
            known.durable(batch)

    def failed(self, producer_id: int, batch: SentBatch, error: Exception) -> None:
        known = self._by_id.get(producer_id)
        if known is None:
            batch.settle(error)
            return
        known.failed(batch, error)
        if known.is_unused and known.epoch == batch.epoch and batch.first:
            del self._by_id[producer_id]  # nothing is known of it, as before the batch

    def read(self, header: BatchHeader, base_offset: int, time_ms: int) -> None:
        self._touched(header).read(header, base_offset, time_ms)

    def expire(self, now_ms: int) -> None:
        """Forget those that have been idle for EXPIRATION_MS."""
        for each in list(self._by_id.values()):
            if each.time_ms + EXPIRATION_MS > now_ms:
                return
            if not each.flying:
                del self._by_id[each.producer_id]

    def _touched(self, header: BatchHeader) -> ProducerSequences:
        known = self._by_id.pop(header.producer_id, None)
        if known is None:
            self._make_room()
            known = ProducerSequences(header.producer_id, header.producer_epoch)
        self._by_id[header.producer_id] = known
        return known

    def _make_room(self) -> None:
        if len(self._by_id) >= self._most:
            idle = (each for each in self._by_id.values() if not each.flying)
            longest = next(idle, None)
            if longest is not None:
                del self._by_id[longest.producer_id]


# -- the snapshot


def encode_head(position: Position) -> bytes:
    """`position` is the next entry to read; `encode_producer` for each producer follows. Captured
    first, the producers may be newer.
    """
    out = Writer()
    out.numbers((_FORMAT, position.ledger_id + 1, position.entry_id + 1))
    return out.getvalue()


def encode_producer(each: ProducerSequences, most_batches: int = WINDOW) -> bytes:
    """With its last durable batches."""
    out = Writer()
    durable = [batch for batch in each.batches if batch.answers is None][-most_batches:]
    out.numbers((each.producer_id, each.epoch, each.durable_last + 1, each.known))
    out.numbers((max(0, each.time_ms), len(durable)))
    for batch in durable:
        out.numbers((batch.first, batch.last, batch.base_offset, max(0, batch.time_ms)))
    return out.getvalue()


def decode(
    value: bytes, name: str, most_producers: int = MOST_PRODUCERS
) -> tuple[Position, PartitionProducers]:
    """`name` is for the error. Raises CorruptStorage."""
    data = Reader(value, f"the snapshot of the Kafka producers of {name}")
    data.version(_FORMAT)
    position = Position(data.number() - 1, data.number() - 1)
    producers = PartitionProducers(most_producers)
    while not data.at_end:
        each = _producer(data)
        producers._by_id[each.producer_id] = each
    return position, producers


def _producer(data: Reader) -> ProducerSequences:
    producer_id, epoch, last, known, time_ms, count = (data.number() for _ in range(6))
    found = ProducerSequences(producer_id, epoch, last - 1, known, time_ms)
    for _ in range(count):
        first, last, base_offset, time_ms = (data.number() for _ in range(4))
        found.batches.append(SentBatch(epoch, first, last, base_offset, time_ms))
    return found
