"""Finds a position by time, also among trimmed messages that compaction has kept."""

from typing import Final, Protocol

from managed_ledger.errors import LedgerClosed, LedgerNotFound
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.broker.compaction.compacted_log import CompactedLog, decode
from pybroker.broker.persistent.publish_time import first_published_at, first_to_read, published_at
from pybroker.transaction.buffer.commit_order_lag import lag_ms

_TRIES: Final = 3  # another compaction may complete meanwhile


class Compacted(Protocol):
    async def log(self) -> CompactedLog | None: ...


class SearchedTopic(Protocol):
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def compacted(self) -> Compacted | None: ...


async def place_of_time(topic: SearchedTopic, timestamp_ms: int) -> Position:
    """The first entry published at `timestamp_ms` or later, in the log or only in the compacted
    log; if there is none, the next position.
    """
    found = await first_to_read(topic.ledger, timestamp_ms)
    oldest = topic.ledger.next_position(topic.ledger.first_position.before)
    if topic.compacted is None or found > oldest:
        return found  # trimmed entries were published earlier
    since_ms = timestamp_ms - lag_ms(topic.ledger)
    kept = await _first_kept_at(topic.compacted, since_ms, _TRIES)
    return found if kept is None else min(found, kept)


async def _first_kept_at(compacted: Compacted, timestamp_ms: int, tries: int) -> Position | None:
    if (log := await compacted.log()) is None:
        return None
    try:
        at = await first_published_at(log.ledger, timestamp_ms, time_of=_time_of)
        kept, _ = await log.read(at)
    except (LedgerClosed, LedgerNotFound):
        if tries == 1:
            raise
        return await _first_kept_at(compacted, timestamp_ms, tries - 1)
    return kept[0].position if kept else None


def _time_of(run: EntryRun) -> int | None:
    return published_at(decode(run.entries[0], run.message_counts[0]).entry)
