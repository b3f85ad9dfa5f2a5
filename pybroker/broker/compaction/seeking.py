"""Where a time is: also among messages that retention has released and compaction has kept."""

from typing import Final, Protocol

from managed_ledger.errors import LedgerClosed, LedgerNotFound
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.broker.compaction.compacted_log import CompactedLog, decode
from pybroker.broker.publish_time import first_published_at, published_at

_TRIES: Final = 3  # another compaction may end meanwhile


class Compacted(Protocol):
    async def log(self) -> CompactedLog | None: ...


class SearchedTopic(Protocol):
    @property
    def ledger(self) -> ManagedLedger: ...
    @property
    def compacted(self) -> Compacted | None: ...


async def place_of_time(topic: SearchedTopic, timestamp_ms: int) -> Position:
    """The first entry that was published at `timestamp_ms` or later, there or only kept by a
    compaction; if there is none, the next one.
    """
    found = await first_published_at(topic.ledger, timestamp_ms)
    oldest = topic.ledger.next_position(topic.ledger.first_position.before)
    if topic.compacted is None or found > oldest:
        return found  # what is released was published before that
    kept = await _first_kept_at(topic.compacted, timestamp_ms, _TRIES)
    return found if kept is None else min(found, kept)


async def _first_kept_at(compacted: Compacted, timestamp_ms: int, tries: int) -> Position | None:
    if (log := await compacted.log()) is None:
        return None
    try:
        at = await first_published_at(log.ledger, timestamp_ms, told=_told)
        kept, _ = await log.read(at)
    except (LedgerClosed, LedgerNotFound):
        if tries == 1:
            raise
        return await _first_kept_at(compacted, timestamp_ms, tries - 1)
    return kept[0].position if kept else None


def _told(run: EntryRun) -> int | None:
    return published_at(decode(run.entries[0], run.message_counts[0]).entry)
