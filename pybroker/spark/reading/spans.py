"""A source's tasks: spans of a partition become Arrow batches.

A span's end is always an entry that was deliverable when it was chosen, so a task knows that it is
done when it reaches that entry, across ledgers, aborted messages and markers. If it cannot be
reached, it has been deleted, which is an error unless the query accepts it (failOnDataLoss).
"""

import logging
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.client import CryptoError, Timeout
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.spark.columns.shape import Origin, Shape
from pybroker.spark.columns.slab import DamagedEntry, Heads, Slab, only, read_heads, slab_of
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.loaded import keep_what_is_loaded
from pybroker.spark.offsets import Position, Span, Stretch
from pybroker.spark.reading.chunked import Chunks
from pybroker.spark.reading.entries import QUIET_S, Entries, TaskClient
from pybroker.spark.reading.short_spans import read_short
from pybroker.spark.reading.work import Work
from pybroker.spark.replay import InputLost
from pybroker.spark.schemas.values import TopicSchema, Versions
from pybroker.spark.session import BROKER_AWAY, PATIENCE_S, PAUSE_S

log = logging.getLogger("pybroker.spark")

# How many bytes are uncompressed together at most; a single entry may have more.
_SLAB_BYTES: Final = 32 * 1024 * 1024
# For a task that reads many partitions: how many are opened ahead, and how many rows are returned
# together.
_AHEAD: Final = 16
_ROWS_TOGETHER: Final = 10_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The part that all tasks of a query share."""

    endpoint: Endpoint
    shape: Shape
    fail_on_data_loss: bool = True


def read_spans(reading: Reading, works: Sequence[Work]) -> Iterator[pa.RecordBatch]:
    """Reads the works one by one; rows of many small ones are returned together."""
    if len(works) == 1:
        yield from read_span(reading, works[0])
        return
    gathered: list[pa.RecordBatch] = []
    rows = 0
    keep_what_is_loaded()
    for batch in _read_many(reading, works):
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_TOGETHER:
            yield from _joined(gathered)
            gathered, rows = [], 0
    yield from _joined(gathered)


def _read_many(reading: Reading, works: Sequence[Work]) -> Iterator[pa.RecordBatch]:
    with TaskClient(reading.endpoint) as client:
        for part in read_short(client, reading.shape, works):
            yield from part.batches
            for at, work in enumerate(part.left):
                ahead = part.left[at + _AHEAD : at + _AHEAD + 1] if at else part.left[: _AHEAD + 1]
                for each in ahead:
                    client.open_ahead(each.topic, each.span.after)
                yield from read_span(reading, work, client)


def _joined(batches: list[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def read_span(
    reading: Reading, work: Work, client: TaskClient | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the span's messages; after a lost connection, continues after the last whole entry."""
    keep_what_is_loaded()
    topic, span = TopicName.parse(work.topic), work.span
    chunks, versions = Chunks(reading.endpoint, work.topic), _Versions()
    after = span.after
    give_up_at = time.monotonic() + PATIENCE_S
    while after < span.to:
        try:
            with Entries(reading.endpoint, work.topic, after, client) as entries:
                for taken in _taken(entries, reading, work, after):
                    for slab, last in _slabs(taken, chunks, entries, reading):
                        cut = _cut(work, slab)
                        if cut.rows:
                            origin = Origin.one(topic, cut)
                            yield reading.shape.batch(cut, origin, versions.of(entries))
                        after = Position(*last[:2])
                    give_up_at = time.monotonic() + PATIENCE_S
                return None
        except TopicNotFound:
            return _lost(reading, replace(work, is_exact=True), Span(after, span.to))
        except BROKER_AWAY:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(PAUSE_S)
    return None


class _Versions:
    """The topic's schemas, each requested once."""

    def __init__(self) -> None:
        self._known: dict[bytes, TopicSchema | None] = {}

    def of(self, entries: Entries) -> Versions:
        def version(name: bytes) -> TopicSchema | None:
            if name not in self._known:
                self._known[name] = entries.schema(name)
            return self._known[name]

        return version


def _taken(
    entries: Entries, reading: Reading, work: Work, reached: Position
) -> Iterator[list[StoredEntry]]:
    """Reads up to the span's end. Raises InputLost."""
    silent_s = 0.0
    span = Span(reached, work.span.to)
    while reached < span.to:
        taken = entries.take(span.to)
        if not taken:
            silent_s += QUIET_S
            if entries.last_position() <= reached:
                return _lost(reading, work, span)
            if silent_s >= PATIENCE_S:
                raise Timeout(
                    f"{work.topic} has messages up to {span.to}, but delivers none of them"
                )
            continue
        silent_s = 0.0
        reached = Position(*taken[-1][:2])
        within = [each for each in taken if each[:2] <= span.to]
        if within:
            yield within
        if reached > span.to and (not within or within[-1][:2] != span.to):
            return _lost(reading, work, span)
    return None


def _lost(reading: Reading, work: Work, span: Span) -> None:
    """Raises InputLost unless the query accepts the loss."""
    if not work.is_exact:
        return
    account = (
        f"Messages of {work.topic} after {span.after} and up to {span.to} were deleted before the "
        "batch was read (they expired or were removed), or are damaged"
    )
    if reading.fail_on_data_loss:
        raise InputLost(f"{account}. To continue without them, set failOnDataLoss=false")
    log.warning("%s: continuing without them (failOnDataLoss=false)", account)


def _slabs(
    taken: list[StoredEntry], chunks: Chunks, entries: Entries, reading: Reading
) -> Iterator[tuple[Slab, StoredEntry]]:
    """Yields the rows of whole entries, and the last of these entries. Raises CryptoError, and
    InputLost for damaged entries."""
    if not taken:
        return
    try:
        heads = read_heads(taken)
        sizes = heads.number("uncompressed_size")
        if len(taken) > 1 and np.maximum(sizes, 0).sum() > _SLAB_BYTES:
            for half in (taken[: len(taken) // 2], taken[len(taken) // 2 :]):
                yield from _slabs(half, chunks, entries, reading)
            return
        slab = _slab(heads, chunks)
    except DamagedEntry as damage:
        yield from _around(damage, taken, chunks, entries, reading)
        return
    entries.unpacked(int(heads.number("num_messages_in_batch").clip(1).sum()))
    yield slab, taken[-1]


def _slab(heads: Heads, chunks: Chunks) -> Slab:
    _require_readable(heads)
    payloads: list[bytes | None] = [None] * len(heads.entries)
    parts = heads.is_chunk
    if not parts.any():
        return slab_of(heads, payloads)
    incomplete = np.zeros(len(parts), np.bool_)
    for index in np.flatnonzero(parts).tolist():
        payloads[index] = chunks.add(heads, index)
        incomplete[index] = payloads[index] is None
    # A chunk that does not complete a message makes no row and is not decompressed.
    for index in np.flatnonzero(incomplete).tolist():
        payloads[index] = b""
    return slab_of(heads, payloads, incomplete)


def _around(
    damage: DamagedEntry,
    taken: list[StoredEntry],
    chunks: Chunks,
    entries: Entries,
    reading: Reading,
) -> Iterator[tuple[Slab, StoredEntry]]:
    """The entries before and after a damaged one, if the query continues without it."""
    if reading.fail_on_data_loss:
        raise InputLost(f"{damage}. To continue without it, set failOnDataLoss=false") from damage
    log.warning("%s: continuing without it (failOnDataLoss=false)", damage)
    index = taken.index(damage.entry)
    entries.unpacked(1)
    for part in (taken[:index], taken[index + 1 :]):
        yield from _slabs(part, chunks, entries, reading)


def _require_readable(heads: Heads) -> None:
    """Raises CryptoError if an entry is encrypted."""
    encrypted = np.flatnonzero(heads.is_encrypted)
    if len(encrypted):
        entry = heads.entries[int(encrypted[0])]
        raise CryptoError(
            f"The entry {entry.ledger_id}:{entry.entry_id} is encrypted, and the source has no "
            "key: read this topic with pybroker.client and a crypto_key_reader"
        )


def _is_within(stretches: Sequence[Stretch], position: Position) -> bool:
    index = bisect_right(stretches, position, key=lambda stretch: stretch.first) - 1
    return index >= 0 and position <= stretches[index].last


def _cut(work: Work, slab: Slab) -> Slab:
    """The slab without acknowledged messages, within the span's first and last message."""
    if work.first_index <= 0 and work.last_index is None and not work.acknowledged:
        return slab
    after, to = work.span
    kept = np.ones(slab.rows, np.bool_)
    if work.acknowledged:
        places = map(Position, slab.ledger.tolist(), slab.entry.tolist())
        kept[:] = [not _is_within(work.acknowledged, place) for place in places]
    if work.first_index > 0:
        first = (slab.ledger == after.ledger_id) & (slab.entry == after.entry_id + 1)
        kept &= ~(first & (slab.batch_index < work.first_index) & (slab.batch_size > 0))
    if work.last_index is not None:
        last = (slab.ledger == to.ledger_id) & (slab.entry == to.entry_id)
        kept &= ~(last & (slab.batch_index > work.last_index))
    return only(slab, kept)
