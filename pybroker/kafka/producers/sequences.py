"""The last batches of one producer on one partition. Source: KIP-98, "Idempotent producer
guarantees"; KAFKA-5494 for five batches in flight.

`check` decides, `reserve` counts the batch before it is appended, and `durable` or `failed` ends
that. A batch that was sent again is answered with its first offset, once it is durable. Of batches
older than the window it is only known that they are stored, and only back to where the sequences
began here: what came before may never have arrived, and is refused as out of order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pybroker.kafka.producers.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
)
from pybroker.kafka.records.batch import LAST_SEQUENCE, BatchHeader, sequence_after

WINDOW: Final = 5
NO_SEQUENCE: Final = -1
_MOST_KNOWN: Final = (LAST_SEQUENCE + 1) // 2  # sequences nearer than this are older, others newer

# Called with the batch's first offset, or with the reason why it was not stored.
Answer = Callable[[int | None, Exception | None], None]


@dataclass(slots=True, eq=False)
class SentBatch:
    epoch: int
    first: int  # sequence
    last: int
    base_offset: int
    time_ms: int
    answers: list[Answer] | None = None  # while it is not durable

    def when_durable(self, answer: Answer) -> None:
        if self.answers is None:
            answer(self.base_offset, None)
        else:
            self.answers.append(answer)

    def settle(self, error: Exception | None) -> None:
        answers, self.answers = self.answers or (), None
        for answer in answers:
            answer(self.base_offset if error is None else None, error)


def distance(sequence: int, earlier: int) -> int:
    """How many steps it takes from `earlier` to `sequence`."""
    return (sequence - earlier) & LAST_SEQUENCE


@dataclass(slots=True, eq=False)
class ProducerSequences:
    """Of the sequences up to `durable_last`, the last `known` are in the log without a gap."""

    producer_id: int
    epoch: int
    durable_last: int = NO_SEQUENCE
    known: int = 0
    time_ms: int = 0
    batches: deque[SentBatch] = field(default_factory=lambda: deque(maxlen=WINDOW))
    flying: list[SentBatch] = field(default_factory=list)  # appended, and not durable yet

    @property
    def last(self) -> int:
        return self.flying[-1].last if self.flying else self.durable_last

    @property
    def is_unused(self) -> bool:
        return not self.flying and self.durable_last == NO_SEQUENCE

    def check(self, header: BatchHeader) -> SentBatch | None:
        """None: the batch is the next one. Otherwise it is a copy of the returned one.

        Raises InvalidProducerEpoch, OutOfOrderSequence, DuplicateSequence.
        """
        first = header.base_sequence
        if header.producer_epoch != self.epoch:
            self._check_new_epoch(header)
            return None
        last = self.last
        expected = 0 if last == NO_SEQUENCE else sequence_after(last, 1)
        return None if first == expected else self._sent_before(header, expected)

    def _check_new_epoch(self, header: BatchHeader) -> None:
        if header.producer_epoch < self.epoch:
            raise InvalidProducerEpoch(
                f"Producer {self.producer_id} has epoch {self.epoch} here; a batch of epoch "
                f"{header.producer_epoch} comes from an older instance"
            )
        if header.base_sequence:
            raise self._out_of_order(header.base_sequence, 0)

    def _sent_before(self, header: BatchHeader, expected: int) -> SentBatch:
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first == first and batch.last == last:
                return batch
        back = distance(self.durable_last, first)
        if back < self.known and distance(self.durable_last, last) <= back:
            raise DuplicateSequence(
                f"Producer {self.producer_id} sent sequences {first} to {last} before; only the "
                f"offsets of its last {WINDOW} batches are known"
            )
        raise self._out_of_order(first, expected)

    def _out_of_order(self, sequence: int, expected: int) -> OutOfOrderSequence:
        return OutOfOrderSequence(
            f"Producer {self.producer_id} of epoch {self.epoch} sent sequence {sequence} where "
            f"{expected} is next"
        )

    # -- changes

    def reserve(self, header: BatchHeader, base_offset: int, time_ms: int) -> SentBatch:
        """Count a batch for which `check` returned None; `durable` or `failed` must follow."""
        batch = self._add(header, base_offset, time_ms)
        batch.answers = []
        self.flying.append(batch)
        return batch

    def durable(self, batch: SentBatch) -> None:
        self._landed(batch)
        self._is_in_the_log(batch)
        batch.settle(None)

    def failed(self, batch: SentBatch, error: Exception) -> None:
        """The batch is not in the log. If later ones are, it cannot come after them any more."""
        self._landed(batch)
        if batch in self.batches:
            self.batches.remove(batch)
        batch.settle(error)

    def read(self, header: BatchHeader, base_offset: int, time_ms: int) -> None:
        """Count a batch that is in the log. Idempotent; what the log says is not questioned."""
        if header.producer_epoch < self.epoch:
            return
        newest = self.batches[-1] if self.batches else None
        if newest is None or newest.base_offset < base_offset:
            self._is_in_the_log(self._add(header, base_offset, time_ms))

    def _add(self, header: BatchHeader, base_offset: int, time_ms: int) -> SentBatch:
        if header.producer_epoch != self.epoch:
            self.epoch, self.durable_last, self.known = header.producer_epoch, NO_SEQUENCE, 0
            self.batches = deque(maxlen=WINDOW)
            self.flying = []
        first, last = header.base_sequence, header.last_sequence
        batch = SentBatch(self.epoch, first, last, base_offset, time_ms)
        self.batches.append(batch)
        self.time_ms = time_ms
        return batch

    def _landed(self, batch: SentBatch) -> None:
        if batch in self.flying:
            self.flying.remove(batch)

    def _is_in_the_log(self, batch: SentBatch) -> None:
        if batch.epoch != self.epoch:
            return
        count = distance(batch.last, batch.first) + 1
        follows = self.durable_last == NO_SEQUENCE or batch.first == sequence_after(
            self.durable_last, 1
        )
        self.known = min(self.known + count, _MOST_KNOWN) if follows else count
        self.durable_last = batch.last
