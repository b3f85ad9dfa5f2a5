"""The entries of a topic that consumers never see: those of aborted transactions, and markers.

Each ledger has a bitmap (managed_ledger.ack_set), so a look-up costs the same however many
transactions aborted, and the data of a ledger is dropped with the ledger. The index is the entry,
not the transaction id, so the data contains only hidden entries, and no ids must be compared.
"""

from collections.abc import Iterable
from typing import Final

from managed_ledger.ack_set import AckSet
from managed_ledger.position import Position

_LOOK_BACK: Final = 512


class HiddenEntries:
    __slots__ = (
        "_changed",
        "_ledgers",
    )

    def __init__(self) -> None:
        self._ledgers: dict[int, AckSet] = {}
        self._changed: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def hide(self, ledger_id: int, first: int, last: int) -> None:
        """Hide the entries from `first` to `last`, both included. Idempotent."""
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            entries = self._ledgers[ledger_id] = AckSet()
        if first == last:
            entries.add(first)
        else:
            entries.add_range(first, last)
        self._changed[ledger_id] = None

    def contains(self, position: tuple[int, int]) -> bool:
        entries = self._ledgers.get(position[0])
        return entries is not None and position[1] in entries

    def ranges_within(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """The hidden entries from `first` to `last`, as closed ranges in order."""
        entries = self._ledgers.get(ledger_id)
        return [] if entries is None else entries.runs(first, last)

    def count(self, after: Position, up_to: Position) -> int:
        """The number of hidden entries in (after, up_to]."""
        return sum(
            self._count_in(ledger_id, after, up_to)
            for ledger_id in self._ledgers
            if after.ledger_id <= ledger_id <= up_to.ledger_id
        )

    def _count_in(self, ledger_id: int, after: Position, up_to: Position) -> int:
        entries = self._ledgers[ledger_id]
        whole = ledger_id < up_to.ledger_id
        upper = len(entries) if whole else entries.count_up_to(up_to.entry_id)
        if ledger_id > after.ledger_id:
            return upper
        return max(0, upper - entries.count_up_to(after.entry_id))

    def last_visible_up_to(self, ledger_id: int, entry_id: int) -> int:
        """The last visible entry of the ledger at or before `entry_id`; -1 if there is none."""
        entries = self._ledgers.get(ledger_id)
        while entries is not None and entry_id >= 0 and entry_id in entries:
            first, _ = entries.runs(max(0, entry_id - _LOOK_BACK), entry_id)[-1]
            entry_id = first - 1
        return entry_id

    # Storage: one value per ledger

    def drop_ledger(self, ledger_id: int) -> None:
        self._ledgers.pop(ledger_id, None)
        self._changed.pop(ledger_id, None)

    def restore(self, ledger_id: int, value: bytes) -> None:
        self._ledgers[ledger_id] = AckSet.decode(value)

    def take_changes(self) -> dict[int, bytes]:
        """The encoded hidden entries of each ledger that has changed since the last call."""
        changed = {ledger_id: self._ledgers[ledger_id].encode() for ledger_id in self._changed}
        self._changed.clear()
        return changed

    def changed_again(self, ledger_ids: Iterable[int]) -> None:
        """The changes from `take_changes` could not be written: return them next time, too."""
        self._changed.update(
            (ledger_id, None) for ledger_id in ledger_ids if ledger_id in self._ledgers
        )
