"""The ledgers of one managed ledger in order, and the arithmetic of positions across them.

Counts are of confirmed entries. Positions may refer to deleted ledgers (trimmed, or dropped because
they were empty) and to missing entries: their order still holds, and every question is answered in
terms of existing entries.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import Position


class LedgerIndex:
    """Closed ledgers and, last, the current one. `last_confirmed` never goes back."""

    __slots__ = (
        "_entries",
        "_ids",
        "_infos",
        "current_id",
        "current_size_bytes",
        "last_confirmed",
    )

    def __init__(self, closed: Iterable[LedgerInfo], current_id: int) -> None:
        self._infos = {info.ledger_id: info for info in closed}
        self._entries = {info.ledger_id: info.entries for info in self._infos.values()}
        self._entries[current_id] = 0
        self._ids = list(self._entries)
        self.current_id = current_id
        self.current_size_bytes = 0
        self.last_confirmed = self._last_existing()

    def __contains__(self, position: tuple[int, int]) -> bool:
        """Whether an entry exists at this position."""
        return 0 <= position[1] < self._entries.get(position[0], 0)

    @property
    def first_position(self) -> Position:
        return Position(self._ids[0], 0)

    @property
    def current_entries(self) -> int:
        return self._entries[self.current_id]

    @property
    def has_closed(self) -> bool:
        return len(self._ids) > 1

    def infos(self) -> list[LedgerInfo]:
        current = LedgerInfo(self.current_id, self.current_entries, self.current_size_bytes)
        return [*self._infos.values(), current]

    def total_size_bytes(self) -> int:
        return self.current_size_bytes + sum(info.size_bytes for info in self._infos.values())

    # changes

    def grow(self, entries: int, size_bytes: int) -> Position:
        """Count more durable entries of the current ledger; returns the position of the first."""
        first_entry_id = self._entries[self.current_id]
        self._entries[self.current_id] = first_entry_id + entries
        self.current_size_bytes += size_bytes
        first = last = Position(self.current_id, first_entry_id)
        if entries != 1:
            last = Position(self.current_id, first_entry_id + entries - 1)
        self.last_confirmed = last
        return first

    def roll_over(self, closed: LedgerInfo, current_id: int) -> None:
        self._infos[closed.ledger_id] = closed
        self._entries[current_id] = 0
        self._ids.append(current_id)
        self.current_id = current_id
        self.current_size_bytes = 0

    def replace_current(self, current_id: int) -> None:
        """Replace the current ledger, which is empty, by a new one."""
        del self._entries[self.current_id]
        self._entries[current_id] = 0
        self._ids[-1] = self.current_id = current_id

    def remove(self, ledger_ids: Iterable[int]) -> None:
        """Remove closed ledgers; never the current one."""
        for ledger_id in ledger_ids:
            del self._infos[ledger_id]
            del self._entries[ledger_id]
        self._ids = list(self._entries)

    def restore(self, infos: Iterable[LedgerInfo]) -> None:
        """Undo a removal that could not be made durable."""
        current = (self.current_id, self._entries.pop(self.current_id))
        known = {info.ledger_id: info for info in (*infos, *self._infos.values())}
        self._infos = dict(sorted(known.items()))
        self._entries = {info.ledger_id: info.entries for info in self._infos.values()}
        self._entries[current[0]] = current[1]
        self._ids = list(self._entries)

    # positions

    def resolve(self, position: Position) -> Position | None:
        """The first entry at or after `position`; None if there is none yet."""
        entry_id = max(0, position.entry_id)
        if entry_id < self._entries.get(position.ledger_id, 0):
            return Position(position.ledger_id, entry_id)
        for ledger_id in self._ids[bisect_right(self._ids, position.ledger_id) :]:
            if self._entries[ledger_id]:
                return Position(ledger_id, 0)
        return None

    def span(self, position: Position, up_to: Position) -> tuple[int, int, int] | None:
        """(ledger id, first, last entry id) to read from `position` on, within one ledger."""
        first = self.resolve(position)
        if first is None or first > up_to:
            return None
        last = self._entries[first.ledger_id] - 1
        if up_to.ledger_id == first.ledger_id:
            last = min(last, up_to.entry_id)
        return first.ledger_id, first.entry_id, last

    def next_position(self, position: Position) -> Position:
        """The first existing entry after `position` or, at the end, the next one to be appended."""
        found = self.resolve(position.after)
        return found or Position(self.current_id, self._entries[self.current_id])

    def previous_position(self, position: Position) -> Position:
        """The last entry before `position`; if there is none, entry -1 of the first ledger."""
        count = self._entries.get(position.ledger_id, 0)
        if count and position.entry_id > 0:
            return Position(position.ledger_id, min(position.entry_id, count) - 1)
        for ledger_id in reversed(self._ids[: bisect_left(self._ids, position.ledger_id)]):
            if self._entries[ledger_id]:
                return Position(ledger_id, self._entries[ledger_id] - 1)
        return self.first_position.before

    def count_between(self, after: Position, up_to: Position) -> int:
        """The number of existing entries after `after`, up to and including `up_to`."""
        low = bisect_left(self._ids, after.ledger_id)
        high = bisect_right(self._ids, up_to.ledger_id)
        total = 0
        for ledger_id in self._ids[low:high]:
            first, stop = 0, self._entries[ledger_id]
            if ledger_id == after.ledger_id:
                first = after.entry_id + 1
            if ledger_id == up_to.ledger_id:
                stop = min(stop, up_to.entry_id + 1)
            total += max(0, stop - first)
        return total

    def _last_existing(self) -> Position:
        for ledger_id in reversed(self._ids):
            if self._entries[ledger_id]:
                return Position(ledger_id, self._entries[ledger_id] - 1)
        return Position(self.current_id, -1)
