"""Finds where to read from to get every message published at or after a time: binary search.

Producers set publish times, which need not grow from entry to entry; like every search by time,
this one is only as exact as they are. In commit order a commit may append messages after younger
ones. Their maximum age is known, so the search skips none of them. Damaged entries, like markers,
have no time.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from managed_ledger.errors import DamagedEntries
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Pace
from pybroker.transaction.buffer.commit_order_lag import lag_ms
from pybroker.wire.message_metadata import BadEntry, parse_metadata

_READS_A_TURN: Final = 200
_READ_ENTRIES: Final = 250  # parsed without a pause: two milliseconds
_READ_BYTES: Final = 1024 * 1024
_LOOKED_THROUGH: Final = 20_000  # entries: beyond that a seek returns older ones instead of waiting


def _time_of(run: EntryRun) -> int | None:
    """The first entry's publish time; None if unknown. A marker has only the broker's time."""
    return published_at(run.entries[0]) if run.message_counts[0] else None


async def first_published_at(
    ledger: ManagedLedger,
    timestamp_ms: int,
    after: Position = EARLIEST,
    time_of: Callable[[EntryRun], int | None] = _time_of,
) -> Position:
    """The first entry after `after` that was published at `timestamp_ms` or later; if there is
    none, the next position. `time_of` returns the time of a run's first entry.
    """
    infos, last = ledger.ledgers(), ledger.last_confirmed
    stops = list(accumulate(info.entries for info in infos))
    pace = Pace(_READS_A_TURN)
    low, high = ledger.count_between(EARLIEST, after), stops[-1]

    def position_of(index: int) -> Position:
        at = bisect_right(stops, index)
        return Position(infos[at].ledger_id, index - stops[at] + infos[at].entries)

    async def before(index: int) -> tuple[bool, int]:
        """Whether the first entry with a time, from `index` on, was published before
        `timestamp_ms`; and its index.
        """
        at = index
        while at < high:
            await pace.step()  # reads from memory do not yield
            position = position_of(at)
            try:
                run = await ledger.read(position, position, 1, 1)
            except DamagedEntries as damaged:
                at += max(1, damaged.last + 1 - position.entry_id)
                continue
            time_ms = -1 if run is None else time_of(run)  # -1: trimmed meanwhile
            if time_ms is not None:
                return time_ms < timestamp_ms, at
            at += 1
        return False, high

    while low < high:
        middle = (low + high) // 2
        is_before, at = await before(middle)
        if is_before:
            low = at + 1
        else:
            high = middle
    # Entries that arrived meanwhile were not checked, and must not be skipped.
    return ledger.next_position(last) if low == stops[-1] else position_of(low)


async def first_to_read(ledger: ManagedLedger, timestamp_ms: int) -> Position:
    """Like `first_published_at`, for logs in which old entries may follow young ones: searches for
    a time that is certainly before all young ones, then reads on from there.
    """
    lag = lag_ms(ledger)
    found = await first_published_at(ledger, timestamp_ms - lag)
    if not lag:
        return found
    end = ledger.last_confirmed
    before = await last_published_before(ledger, timestamp_ms, found.before, end, _LOOKED_THROUGH)
    return max(found, ledger.next_position(before))


async def last_published_before(
    ledger: ManagedLedger,
    timestamp_ms: int,
    after: Position,
    up_to: Position,
    most: int = 1 << 62,
) -> Position:
    """The entry before the first one after `after` that was published at `timestamp_ms` or later;
    `up_to` if there is none. Reads all entries in between, or about `most`: for logs in which old
    entries follow young ones, as with transactions in commit order.
    """
    position = after.after
    while run := await ledger.read_whole(position, up_to, _READ_ENTRIES, _READ_BYTES):
        position = Position(run.ledger_id, run.first_entry_id)
        for entry, count in zip(run.entries, run.message_counts, strict=True):
            if count and (published_at(entry) or 0) >= timestamp_ms:
                return ledger.previous_position(position)
            position = position.after
        most -= len(run.entries)
        if most <= 0:
            return position.before
        await asyncio.sleep(0)
    return up_to


def published_at(entry: bytes) -> int | None:
    """The publish time; None if the entry has none."""
    try:
        return parse_metadata(entry).publish_time
    except BadEntry:
        return None
