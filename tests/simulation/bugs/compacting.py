"""Wrong compactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from managed_ledger.position import Position
from pybroker.broker.compaction.compaction import Compaction
from pybroker.broker.compaction.selection import Selection


@contextmanager
def tombstone_takes_a_live_key() -> Iterator[None]:
    """A key that was ever deleted stays deleted, whatever was published later."""
    right_see, right_kept = Selection._see_messages, Selection.kept
    deleted: dict[Selection, set[bytes]] = {}

    def see(self: Selection, first: int, found: Any, *which: Any) -> None:
        deleted.setdefault(self, set()).update(
            keyed.key for keyed in found if keyed.key is not None and keyed.deletes
        )
        right_see(self, first, found, *which)

    async def kept(self: Selection) -> Any:
        for key in deleted.pop(self, ()):
            self._of(key).pop(key, None)
        return await right_kept(self)

    with patch.object(Selection, "_see_messages", see), patch.object(Selection, "kept", kept):
        yield


@contextmanager
def compaction_reads_past_max_read_position() -> Iterator[None]:
    """Compaction reads messages of open transactions, and keeps them."""

    def horizon(self: Compaction) -> Position:
        return self._topic.ledger.last_confirmed

    with patch.object(Compaction, "_decided", horizon):
        yield


@contextmanager
def deletions_gone_before_readers_came() -> Iterator[None]:
    """Compaction drops deletions of keys that durable readers have not passed."""
    with patch.object(Compaction, "_passed", lambda _: iter(())):
        yield


BUGS = {
    "compaction-reads-past-max-read-position": compaction_reads_past_max_read_position,
    "deletions-gone-before-readers-came": deletions_gone_before_readers_came,
    "tombstone-takes-a-live-key": tombstone_takes_a_live_key,
}
