"""Consecutive entries of one ledger in memory, by column: a ledger's tail, or a block read back."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.tag_runs import NO_TAGS, TagRuns

LOOK_AHEAD: Final = 256


def leading(entries: list[bytes], max_bytes: int) -> list[bytes]:
    """The first entries, as many as fit into `max_bytes`, but at least one."""
    if sum(map(len, entries)) <= max_bytes:
        return entries
    ends = list(accumulate(map(len, entries)))
    return entries[: max(1, bisect_right(ends, max_bytes))]


class EntryColumns:
    """Entries `first_entry_id` (inclusive) to `next_entry_id` (exclusive), all durable."""

    __slots__ = ("entries", "first_entry_id", "message_counts", "tags")

    def __init__(
        self,
        first_entry_id: int = 0,
        entries: list[bytes] | None = None,
        message_counts: "array[int] | None" = None,
        tags: TagRuns | None = None,
    ) -> None:
        self.first_entry_id = first_entry_id
        self.entries = [] if entries is None else entries
        self.message_counts = array("I") if message_counts is None else message_counts
        self.tags = NO_TAGS if tags is None else tags

    @property
    def next_entry_id(self) -> int:
        return self.first_entry_id + len(self.entries)

    def extend(
        self, entries: Sequence[bytes], message_counts: Iterable[int], tag: bytes = b""
    ) -> None:
        if tag and entries:
            first = self.next_entry_id
            if self.tags is NO_TAGS:
                self.tags = TagRuns()
            self.tags.add(first, first + len(entries) - 1, tag)
        self.entries.extend(entries)
        self.message_counts.extend(message_counts)

    def leading_from(self, start: int, max_entries: int, max_bytes: int) -> list[bytes]:
        """`leading` for the entries from index `start` on, without visiting all of them."""
        found: list[bytes] = []
        stop = min(len(self.entries), start + max_entries)
        while start < stop and max_bytes > 0:
            piece = leading(self.entries[start : min(stop, start + LOOK_AHEAD)], max_bytes)
            found += piece
            max_bytes -= sum(map(len, piece))
            start += LOOK_AHEAD
            if len(piece) < LOOK_AHEAD:
                break
        return found

    def drop_before(self, entry_id: int) -> None:
        dropped = max(0, entry_id - self.first_entry_id)
        del self.entries[:dropped]
        del self.message_counts[:dropped]
        self.tags.drop_before(entry_id)
        self.first_entry_id += dropped

    def run(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun | None:
        """None if the first entry is not in memory."""
        start = first_entry_id - self.first_entry_id
        if start < 0 or last_entry_id < first_entry_id:
            return None
        stop = min(last_entry_id + 1 - self.first_entry_id, start + max_entries)
        entries = self.entries[start:stop]
        if not entries:
            return None
        entries = leading(entries, max_bytes)
        message_counts = self.message_counts[start : start + len(entries)].tolist()
        run = EntryRun(ledger_id, first_entry_id, entries, message_counts)
        if self.tags:
            run.tags = self.tags.within(first_entry_id, first_entry_id + len(entries) - 1)
        return run
