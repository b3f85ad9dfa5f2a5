"""The entries that wait for acknowledgement on a subscription, by their number: for the admin API.

Whole ranges are counted, so that a deep look costs by acknowledged ranges, not by entries.
"""

from collections.abc import Iterator

from managed_ledger.cursor import ManagedCursor
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.broker.dispatch.entry_reader import HiddenRanges, Range, between


def nth_waiting(
    ledger: ManagedLedger, cursor: ManagedCursor, hidden: HiddenRanges, number: int
) -> Position | None:
    """The entry `number`, counted from 1, that is neither acknowledged nor hidden."""
    mark = cursor.mark_delete_position
    for info in ledger.ledgers():
        first = mark.entry_id + 1 if info.ledger_id == mark.ledger_id else 0
        if info.ledger_id < mark.ledger_id or first >= info.entries:
            continue
        for start, end in _waiting(cursor, hidden, info.ledger_id, (first, info.entries - 1)):
            if number <= end - start + 1:
                return Position(info.ledger_id, start + number - 1)
            number -= end - start + 1
    return None


def _waiting(
    cursor: ManagedCursor, hidden: HiddenRanges, ledger_id: int, span: Range
) -> Iterator[Range]:
    for start, end in between(*span, cursor.deleted_within(ledger_id, *span)):
        yield from between(start, end, hidden.ranges_within(ledger_id, start, end))
