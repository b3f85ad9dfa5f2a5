"""Checks that the records of managed ledgers, their cursors and the stored ledgers fit together."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote

from managed_ledger.ack_set import AckSet
from managed_ledger.errors import CorruptStorage
from managed_ledger.findings import Finding, note
from managed_ledger.ledger_metadata import (
    CURSORS_PREFIX,
    LEDGERS_PREFIX,
    CursorRecord,
    LedgerInfo,
    LedgerList,
    cursor_name,
)
from managed_ledger.position import Position

_BACKUP: Final = "Restore the data directory from a backup."

Count = Callable[[int], int | None]  # entries of a ledger; None: it is not stored


class Logs:
    """`names` maps a ledger to the log that lists it; `check` yields the findings."""

    def __init__(self, items: Mapping[str, bytes], count: Count) -> None:
        self._items = items
        self._count = count
        self.lists: dict[str, LedgerList] = {}  # by the managed ledger's name
        self.names: dict[int, str] = {}

    def check(self, ledger_ids: list[int]) -> Iterator[Finding]:
        for key, value in self._items.items():
            if key.startswith(LEDGERS_PREFIX):
                yield from self._check_list(key.removeprefix(LEDGERS_PREFIX), value)
        for key, value in self._items.items():
            if key.startswith(CURSORS_PREFIX):
                yield from self._check_cursor(key, value)
        orphans = [each for each in ledger_ids if each not in self.names]
        deleting = {each for found in self.lists.values() for each in found.deleting}
        for ledger_id in orphans:
            if ledger_id not in deleting:
                yield note(f"ledger {ledger_id}", "belongs to no log: the next start deletes it")

    def _check_list(self, name: str, value: bytes) -> Iterator[Finding]:
        try:
            found = LedgerList.decode(value, LEDGERS_PREFIX + name)
        except (CorruptStorage, ValueError) as error:
            yield Finding(
                name, f"its list of ledgers cannot be read: {error}", "the whole log", _BACKUP
            )
            return
        self.lists[name] = found
        if found.deleted:
            yield note(name, "is being deleted: the next start completes the deletion")
            return
        ids = [info.ledger_id for info in found.ledgers]
        if ids != sorted(set(ids)):
            yield Finding(name, f"lists ledgers out of order: {ids}", "", _BACKUP)
        for info in found.ledgers:
            if info.ledger_id in self.names:
                other = self.names[info.ledger_id]
                yield Finding(
                    name, f"lists ledger {info.ledger_id}, which belongs to {other}", "", _BACKUP
                )
            self.names[info.ledger_id] = name
            yield from self._check_ledger(name, info, is_last=info is found.ledgers[-1])

    def _check_ledger(self, name: str, info: LedgerInfo, is_last: bool) -> Iterator[Finding]:
        stored = self._count(info.ledger_id)
        if stored is None:
            lost = f"entries 0 to {info.entries - 1} of it" if info.entries else "its entries"
            what = f"lists ledger {info.ledger_id}, which is not stored"
            yield Finding(name, what, lost, _BACKUP)
        elif info.closed_at_ms is None and not is_last:
            what = f"continues after ledger {info.ledger_id}, which is not closed"
            yield Finding(name, what, "", _BACKUP)
        elif info.closed_at_ms is not None and info.entries != stored:
            what = f"counts {info.entries} entries of ledger {info.ledger_id}; {stored} are stored"
            lost = f"entries {stored} to {info.entries - 1}" if stored < info.entries else ""
            yield Finding(name, what, lost, _BACKUP)

    # -- cursors

    def _check_cursor(self, key: str, value: bytes) -> Iterator[Finding]:
        name, cursor = unquote(key.split("/")[1]), cursor_name(key)
        where = f"cursor {cursor} of {name}"
        try:
            record = CursorRecord.decode(value, key)
            acked = {each: AckSet.decode(data) for each, data in record.acked.items()}
        except (CorruptStorage, ValueError, AssertionError) as error:
            yield Finding(where, f"cannot be read: {error}", "its acknowledgements", _BACKUP)
            return
        found = self.lists.get(name)
        if found is None:
            yield Finding(where, "belongs to a log that does not exist", "", _BACKUP)
        elif not found.deleted:
            yield from self._check_positions(where, found, record, acked)

    def _check_positions(
        self, where: str, found: LedgerList, record: CursorRecord, acked: Mapping[int, AckSet]
    ) -> Iterator[Finding]:
        end = self._end(found)
        mark = record.mark_delete_position
        if mark > end:
            yield _ahead(where, "its mark-delete position", mark, end)
        for ledger_id, entries in acked.items():
            last = Position(ledger_id, entries.last)
            if last > end or not self._may_exist(found, last):
                yield _ahead(where, "an acknowledgement", last, end)
        for at in record.batches:
            position = Position(*at)
            if position > end or not self._may_exist(found, position):
                yield _ahead(where, "an acknowledgement of part of a batch", position, end)

    def _may_exist(self, found: LedgerList, position: Position) -> bool:
        """True also for ledgers that are no longer listed: they may have been trimmed."""
        if all(info.ledger_id != position.ledger_id for info in found.ledgers):
            return True
        stored = self._count(position.ledger_id)
        return stored is None or position.entry_id < stored

    def _end(self, found: LedgerList) -> Position:
        """The last entry of the log, or entry -1 of its newest ledger if that is empty."""
        for info in reversed(found.ledgers):
            stored = self._count(info.ledger_id) or info.entries
            if stored or info is found.ledgers[0]:
                newest = found.ledgers[-1].ledger_id
                return max(Position(info.ledger_id, stored - 1), Position(newest, -1))
        return Position(-1, -1)


def _ahead(where: str, what: str, position: Position, end: Position) -> Finding:
    return Finding(
        where,
        f"{what} is {position}, and the log ends at {end}",
        "messages published from now on may be treated as acknowledged",
        "Delete the subscription and create it again, or move it (`pybroker admin topics "
        "reset-cursor`).",
    )
