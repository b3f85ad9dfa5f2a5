"""Divides a producer's run of messages into pieces that are handled alike.

The pieces come one by one, in order, and each must be handled before the next is requested. New
messages are taken with their piece, so that a later copy in the same run is recognised. A Copy or
Later is always the last piece.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.broker.deduplication.batch_ids import Examinations, highest_of_batch
from pybroker.broker.deduplication.producer_sequence import (
    Answer,
    Chunk,
    ProducerSequence,
    Standing,
)
from pybroker.broker.deduplication.rebatching import rebatched
from pybroker.broker.deduplication.sent import MAX_TAKEN, Sent, encode_sent
from pybroker.broker.deduplication.sequence_ranges import Range
from pybroker.wire.message_metadata import BadEntry, parse_metadata

HIGHEST_ID: Final = 2**63 - 1  # the highest id that the broker can tell a reconnecting producer


class SequencedRun(Protocol):
    """Consecutive messages of one producer, by column (wire.frames.SendRun is one)."""

    @property
    def txn_id(self) -> TxnId | None: ...
    @property
    def chunked(self) -> bool: ...
    @property
    def message_counts(self) -> list[int]: ...
    @property
    def entries(self) -> list[bytes]: ...

    def sequence_ids(self) -> list[int]: ...
    def highest_sequence_ids(self) -> list[int]:
        """As stated by the producer; the lowest id if it stated none."""
        ...


class Taken:
    """New messages on their way to the log. Call `stored` or `failed` once."""

    __slots__ = ("_state", "_told", "chunk", "ranges", "txn_id")

    def __init__(
        self, state: ProducerSequence, txn_id: TxnId | None, chunk: Chunk | None = None
    ) -> None:
        self._state = state
        self.txn_id = txn_id
        self.chunk = chunk
        self.ranges: list[Range] = []
        self._told: list[Range] = []  # ids given back earlier, stored with these messages

    def add(self, first: int, last: int) -> None:
        """Adjacent ids become one range, which `settle` takes at the latest."""
        if self.ranges and self.ranges[-1][1] == first - 1:
            self.ranges[-1] = (self.ranges[-1][0], last)
        else:
            self.settle()
            self.ranges.append((first, last))
        self._state.top = max(self._state.top, last)

    def settle(self) -> None:
        """After this the state includes everything that was added."""
        if self.ranges:
            self._state.take(*self.ranges[-1], self.txn_id)

    def sent_by(self, producer: str) -> bytes:
        """The record to store with these messages."""
        self._told = self._state.tell(for_good=self.txn_id is None)
        number, ranges = -1, self.ranges
        if self.chunk is not None:
            sequence_id, number = self.chunk
            ranges = [(sequence_id, sequence_id)]
        return encode_sent(Sent(producer, number, ranges, self._told, self._state.floor))

    def stored(self) -> None:
        if self.chunk is not None:
            self._state.chunk_stored(self.chunk)
        else:
            self._state.stored(self.ranges)

    def failed(self, error: Exception) -> None:
        if self.txn_id is None:
            self._state.not_told(self._told)
        if self.chunk is not None:
            self._state.chunk_failed(self.chunk, error)
        else:
            self._state.failed(self.ranges, self.txn_id, error)


@dataclass(frozen=True, slots=True)
class Piece:
    """The messages of the run from index `start` up to but not including `stop`."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class New(Piece):
    taken: Taken


@dataclass(frozen=True, slots=True)
class Rest(New):
    """A single batch without the messages that are already stored."""

    entry: bytes
    messages: int


@dataclass(frozen=True, slots=True)
class Duplicate(Piece):
    """A single message."""

    state: ProducerSequence
    what: Range | Chunk

    def when_durable(self, answer: Answer) -> None:
        """Call `answer` once the first copy is durable; at once if it already is."""
        if self.state.is_durable(self.what):
            answer(None)
        else:
            self.state.waiting.append((self.what, answer))


@dataclass(frozen=True, slots=True)
class Copy(Piece):
    """The rest of the run, which begins with a copy of a message that `txn_id` holds: only the end
    of that transaction determines whether the copy is new.
    """

    txn_id: TxnId


@dataclass(frozen=True, slots=True)
class Later(Piece):
    """The rest of the run: it waits until some ids are durable, or else for another turn of the
    loop, because it takes time to examine batches.
    """

    first_copy: Duplicate | None = None

    def when_ready(self, go_on: Callable[[], None]) -> None:
        """Call `go_on`, in any case from the loop."""

        def soon(error: Exception | None) -> None:
            asyncio.get_running_loop().call_soon(go_on)

        if self.first_copy is None:
            soon(None)
        else:
            self.first_copy.when_durable(soon)


@dataclass(frozen=True, slots=True)
class Refused(Piece):
    """A single message."""

    error: NotAllowed


def pieces_of(
    state: ProducerSequence,
    producer: str,
    run: SequencedRun,
    examinations: Examinations,
    most_taken: int = MAX_TAKEN,
) -> Iterator[Piece]:
    """`most_taken`: the maximum number of new messages in a piece, which is one append."""
    firsts, lasts = run.sequence_ids(), run.highest_sequence_ids()
    some_too_high = max(max(firsts), max(lasts)) > HIGHEST_ID
    chunk = _chunk_of(run) if run.chunked and not some_too_high else None
    if chunk is not None:
        yield _chunk_piece(state, producer, chunk, run.txn_id)
        return
    spans: Iterator[Range] = zip(firsts, lasts, strict=True)
    if max(run.message_counts) > 1:
        spans, some_too_high = spans_of_batches(run, examinations), True
    start, index, taken = 0, -1, Taken(state, run.txn_id)
    for index, (first, last) in enumerate(spans):
        if index - start == most_taken:
            taken.settle()
            yield New(start, index, taken)
            start, taken = index, Taken(state, run.txn_id)
        if some_too_high and max(first, last) > HIGHEST_ID:
            taken.settle()
            if start < index:
                yield New(start, index, taken)
                taken = Taken(state, run.txn_id)
            start = index + 1
            yield Refused(index, start, _too_high(producer, max(first, last)))
            continue
        if first > state.top:
            taken.add(first, max(first, last))
            continue
        taken.settle()
        span = (first, max(first, last))
        standing = state.standing(*span, run.txn_id)
        if standing is Standing.NEW:
            taken.add(*span)
            continue
        if start < index:
            yield New(start, index, taken)
            taken = Taken(state, run.txn_id)
        start = index + 1
        if standing is Standing.COPY:
            yield _copy(state, span, index, len(run.entries), run.txn_id)
            return
        if standing is Standing.MIXED and state.flying.overlaps(*span):
            yield Later(index, len(run.entries), Duplicate(index, index, state, span))
            return
        if standing is Standing.MIXED:
            yield _mixed(state, producer, span, index, run, examinations)
        else:
            yield _known(state, producer, span, index, standing)
    stop = index + 1
    if start < stop:
        taken.settle()
        yield New(start, stop, taken)
    if stop < len(run.entries):
        yield Later(stop, len(run.entries))


def spans_of_batches(
    run: SequencedRun, examinations: Examinations, all_of_them: bool = False
) -> Iterator[Range]:
    """The lowest and highest id of each message or batch. Unless `all_of_them`, it stops where an
    examination must wait.
    """
    stated = zip(run.sequence_ids(), run.highest_sequence_ids(), strict=True)
    for (first, last), count, entry in zip(stated, run.message_counts, run.entries, strict=True):
        if count == 1 or last > first:
            yield first, last
        elif all_of_them or not examinations.must_wait:
            yield first, highest_of_batch(entry, first, examinations)
        else:
            return


def _too_high(producer: str, sequence_id: int) -> NotAllowed:
    return NotAllowed(f"{producer}: sequence id {sequence_id} is above the highest, {HIGHEST_ID}")


def _mixed(
    state: ProducerSequence,
    producer: str,
    span: Range,
    index: int,
    run: SequencedRun,
    examinations: Examinations,
) -> Piece:
    def standing(sequence_id: int) -> Standing:
        return state.standing(sequence_id, sequence_id, run.txn_id)

    new = rebatched(run.entries[index], span[0], standing, examinations)
    if new is None:
        return _known(state, producer, span, index, Standing.MIXED)
    if not new.ranges:
        return Duplicate(index, index + 1, state, span)
    taken = Taken(state, run.txn_id)
    for each in new.ranges:
        taken.add(*each)
    taken.settle()
    return Rest(index, index + 1, taken, new.entry, new.messages)


def _known(
    state: ProducerSequence, producer: str, span: Range, index: int, standing: Standing
) -> Piece:
    if standing is Standing.DUPLICATE:
        return Duplicate(index, index + 1, state, span)
    state.refused(*span)
    return Refused(index, index + 1, _refusal(producer, span, standing))


def _copy(
    state: ProducerSequence, span: Range, start: int, stop: int, txn_id: TxnId | None
) -> Copy:
    holder = state.holder(*span, txn_id)
    assert holder is not None
    return Copy(start, stop, holder)


def _refusal(producer: str, span: Range, standing: Standing) -> NotAllowed:
    ids = str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"
    way_out = (
        "send its messages one by one"
        if standing is Standing.MIXED
        else "continue after the producer's last sequence id"
    )
    return NotAllowed(f"{producer}: sequence id {ids} {standing.value}; {way_out}")


# -- chunks


def _chunk_of(run: SequencedRun) -> Chunk | None:
    """The run's chunk, which only the metadata shows. None: the last chunk, or not a chunk."""
    (entry,), (sequence_id,) = run.entries, run.sequence_ids()
    try:
        metadata = parse_metadata(entry)
    except BadEntry:
        return None
    return chunk_of(sequence_id, metadata.chunk_id, metadata.num_chunks_from_msg)


def chunk_of(sequence_id: int, number: int, count: int) -> Chunk | None:
    return Chunk(sequence_id, number) if 0 <= number < count - 1 else None


def _chunk_piece(
    state: ProducerSequence, producer: str, chunk: Chunk, txn_id: TxnId | None
) -> Piece:
    span = (chunk.sequence_id, chunk.sequence_id)
    standing = state.chunk_standing(chunk, txn_id)
    if standing is Standing.NEW:
        state.take_chunk(chunk, txn_id)
        return New(0, 1, Taken(state, txn_id, chunk))
    if standing is Standing.COPY:
        holder = state.holder(*span, txn_id) or state.chunk_txn
        assert holder is not None
        return Copy(0, 1, holder)
    if standing is Standing.DUPLICATE:
        return Duplicate(0, 1, state, chunk)
    return Refused(0, 1, _refusal(producer, span, standing))
