"""Where to read from to get every message published at or after a time: binary search by entry.

Publish times are the producers' and need not grow from entry to entry; like every search by time,
this one is only as exact as they are. Damaged entries tell nothing, as markers do.
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
from pybroker.wire.message_metadata import BadEntry, parse_metadata

_READS_A_TURN: Final = 200
_READ_ENTRIES: Final = 250  # parsed in one go: two milliseconds
_READ_BYTES: Final = 1024 * 1024


def _told(run: EntryRun) -> int | None:
    """None where nobody knows: a marker has the broker's time, which tells nothing of messages."""
    return published_at(run.entries[0]) if run.message_counts[0] else None


async def first_published_at(
    ledger: ManagedLedger,
    timestamp_ms: int,
    after: Position = EARLIEST,
    told: Callable[[EntryRun], int | None] = _told,
) -> Position:
    """The first entry behind `after` that was published at `timestamp_ms` or later; if there is
    none, the next one. `told`: what the first entry of a run tells of its time.
    """
    infos, last = ledger.ledgers(), ledger.last_confirmed
    stops = list(accumulate(info.entries for info in infos))
    pace = Pace(_READS_A_TURN)
    low, high = ledger.count_between(EARLIEST, after), stops[-1]

    def position_of(index: int) -> Position:
        at = bisect_right(stops, index)
        return Position(infos[at].ledger_id, index - stops[at] + infos[at].entries)

    async def before(index: int) -> tuple[bool, int]:
        """Whether the first entry from `index` on that tells was published before; where it is."""
        at = index
        while at < high:
            await pace.step()  # what is in memory comes at once
            position = position_of(at)
            try:
                run = await ledger.read(position, position, 1, 1)
            except DamagedEntries as damaged:
                at += max(1, damaged.last + 1 - position.entry_id)
                continue
            time_ms = -1 if run is None else told(run)  # -1: trimmed meanwhile
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
    # What has come meanwhile was not looked at, and is not passed over.
    return ledger.next_position(last) if low == stops[-1] else position_of(low)


async def last_published_before(
    ledger: ManagedLedger, timestamp_ms: int, after: Position, up_to: Position
) -> Position:
    """The last entry up to there before the first one behind `after` that was published at
    `timestamp_ms` or later. It reads all of them: for logs in which old ones come behind young
    ones, as with transactions in commit order.
    """
    position = after.after
    while run := await ledger.read_whole(position, up_to, _READ_ENTRIES, _READ_BYTES):
        position = Position(run.ledger_id, run.first_entry_id)
        for entry, count in zip(run.entries, run.message_counts, strict=True):
            if count and (published_at(entry) or 0) >= timestamp_ms:
                return ledger.previous_position(position)
            position = position.after
        await asyncio.sleep(0)
    return up_to


def published_at(entry: bytes) -> int | None:
    """None where the entry does not tell."""
    try:
        return parse_metadata(entry).publish_time
    except BadEntry:
        return None
