"""Offsets by time: the first message of a time or later, and that with the largest time.

The times are those that consumers see: of a record, or the event or publish time of a Pulsar
message. The search goes by halves, as if they grew with the offsets: it is as exact as they do.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.publish_time import first_published_at
from pybroker.kafka.conversion.entries import batch_start
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.log.reading import fetch
from pybroker.kafka.records.batch import CODEC, HEADER_BYTES, LOG_APPEND_TIME, header_of
from pybroker.kafka.records.compression import decompress
from pybroker.kafka.records.errors import BadRecords
from pybroker.kafka.records.record import read_records
from pybroker.kafka.records.steps import RECORDS_A_STEP, in_turns
from pybroker.wire.message_metadata import BadEntry, parse_metadata

_READ_BYTES: Final = 1024 * 1024
_LOOKED_THROUGH: Final = 100_000  # offsets: the largest time is looked for among the last ones


class TimedOffset(NamedTuple):
    offset: int
    time_ms: int


async def first_at(log: PartitionLog, time_ms: int, committed_only: bool) -> TimedOffset | None:
    """The first message with this time or a later one; None if there is none."""
    ledger, limit = log.topic.ledger, log.limit(committed_only)
    position = await first_published_at(ledger, time_ms, time_of=largest_time)
    if position > limit:
        return None
    offset = await log.offsets.end_after(ledger.previous_position(position))
    start = await log.offsets.start()
    async for batch in _batches(log, max(start, offset), limit):
        async for found in _times(batch):
            if found.time_ms >= time_ms and found.offset >= start:
                return found
    return None


async def latest_time(log: PartitionLog, committed_only: bool) -> TimedOffset | None:
    """The first message with the largest time, among the last ones of the log."""
    limit = log.limit(committed_only)
    start, end = await log.offsets.start(), await log.offsets.end_after(limit)
    best: TimedOffset | None = None
    async for batch in _batches(log, max(start, end - _LOOKED_THROUGH), limit):
        if not _may_have_later(batch, best):
            continue
        async for found in _times(batch):
            is_later = best is None or found.time_ms > best.time_ms
            if is_later and found.offset >= start:
                best = found
    return best


def _may_have_later(batch: bytes, best: TimedOffset | None) -> bool:
    return best is None or header_of(batch).max_timestamp > best.time_ms


async def _batches(log: PartitionLog, offset: int, limit: Position) -> AsyncIterator[bytes]:
    while True:
        found = await fetch(log.topic, log.offsets, offset, limit, _READ_BYTES, True)
        for batch in found.batches:
            yield batch
        if found.next_offset == offset:
            return
        offset = found.next_offset


async def _times(batch: bytes) -> AsyncIterator[TimedOffset]:
    """Of the records, as far as they can be read; otherwise of the batch."""
    header, pace = header_of(batch), Pace(RECORDS_A_STEP)
    if not header.attributes & LOG_APPEND_TIME:
        try:
            data = batch[HEADER_BYTES:]
            plain = await in_turns(decompress(header.attributes & CODEC, data))
            for each in read_records(plain, header.record_count):
                time_ms = header.base_timestamp + each.timestamp_delta
                yield TimedOffset(header.base_offset + each.offset_delta, time_ms)
                await pace.step()
            return
        except BadRecords:
            pass
    if header.record_count:
        yield TimedOffset(header.base_offset, header.max_timestamp)


def largest_time(run: EntryRun) -> int | None:
    """Of the run's first entry; None if it has none."""
    entry = run.entries[0]
    if not run.message_counts[0]:
        return None
    try:
        if start := batch_start(entry):
            return header_of(entry[start:]).max_timestamp
        metadata = parse_metadata(entry)
    except (BadRecords, BadEntry):
        return None
    return int(metadata.event_time or metadata.publish_time)
