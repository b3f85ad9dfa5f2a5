"""Where to read from to get every message published at or after a time: binary search by entry.

Publish times are the producers' and need not grow from entry to entry; like every search by time,
this one is only as exact as they are.
"""

from bisect import bisect_right
from itertools import accumulate

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.wire.message_metadata import BadEntry, parse_metadata


async def first_published_at(ledger: ManagedLedger, timestamp_ms: int) -> Position:
    """The first entry published at `timestamp_ms` or later; if there is none, the next one."""
    infos = ledger.ledgers()
    stops = list(accumulate(info.entries for info in infos))
    low, high = 0, stops[-1]

    def position_of(index: int) -> Position:
        at = bisect_right(stops, index)
        return Position(infos[at].ledger_id, index - stops[at] + infos[at].entries)

    while low < high:
        middle = (low + high) // 2
        if await _published_before(ledger, position_of(middle), timestamp_ms):
            low = middle + 1
        else:
            high = middle
    return ledger.next_position(ledger.last_confirmed) if low == stops[-1] else position_of(low)


async def _published_before(ledger: ManagedLedger, position: Position, timestamp_ms: int) -> bool:
    run = await ledger.read(position, position, 1, 1)
    if run is None:
        return True  # trimmed meanwhile
    try:
        return parse_metadata(run.entries[0]).publish_time < timestamp_ms
    except BadEntry:
        return False  # nobody knows when; rather once too often than never
