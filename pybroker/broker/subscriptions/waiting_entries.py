"""A subscription's waiting entries (neither acknowledged nor hidden) by number, for the admin API.

Ranges are counted as a whole, so the cost of a deep lookup grows with the number of acknowledged
ranges, not of entries. The log is searched in pieces, each twice as long as the previous, so that
an entry near the beginning is found at little cost, whatever was acknowledged after it.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from managed_ledger.errors import DamagedEntries
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.broker.dispatch.entry_reader import HiddenRanges, Range, between

_FIRST_PIECE: Final = 1000  # entries


class Acknowledged(Protocol):
    """A cursor, or a hypothetical one."""

    @property
    def mark_delete_position(self) -> Position: ...

    def deleted_within(self, ledger_id: int, first: int, last: int) -> list[Range]: ...


class NothingAcknowledged:
    """The acknowledgements of a subscription created at the beginning of the log: none."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.mark_delete_position = Position(ledger.first_position.ledger_id, -1)

    def deleted_within(self, ledger_id: int, first: int, last: int) -> list[Range]:
        return []


def nth_waiting(
    ledger: ManagedLedger, cursor: Acknowledged, hidden: HiddenRanges, number: int
) -> Position | None:
    """The waiting entry `number`, counted from 1."""
    for ledger_id, (start, end) in waiting(ledger, cursor, hidden, cursor.mark_delete_position):
        if number <= end - start + 1:
            return Position(ledger_id, start + number - 1)
        number -= end - start + 1
    return None


async def waiting_entry(
    ledger: ManagedLedger, cursor: Acknowledged, hidden: HiddenRanges, number: int
) -> tuple[Position, bytes] | None:
    """The waiting entry `number`, counted from 1, with its position."""
    position = nth_waiting(ledger, cursor, hidden, number)
    run = None if position is None else await ledger.read(position, position, 1, 1)
    return None if position is None or run is None else (position, run.entries[0])


async def first_readable(
    ledger: ManagedLedger, cursor: Acknowledged, hidden: HiddenRanges
) -> bytes | None:
    """The first waiting entry that is not damaged."""
    after = cursor.mark_delete_position
    while (found := next(waiting(ledger, cursor, hidden, after), None)) is not None:
        position = Position(found[0], found[1][0])
        try:
            run = await ledger.read(position, position, 1, 1)
        except DamagedEntries as damaged:
            after = Position(damaged.ledger_id, damaged.last)
        else:
            return None if run is None else run.entries[0]
    return None


def waiting(
    ledger: ManagedLedger, cursor: Acknowledged, hidden: HiddenRanges, after: Position
) -> Iterator[tuple[int, Range]]:
    """Closed ranges of all waiting entries after `after`, each with its ledger."""
    for info in ledger.ledgers():
        first = after.entry_id + 1 if info.ledger_id == after.ledger_id else 0
        if info.ledger_id < after.ledger_id or first >= info.entries:
            continue
        for piece in _pieces(first, info.entries - 1):
            for found in _waiting(cursor, hidden, info.ledger_id, piece):
                yield info.ledger_id, found


def _pieces(first: int, last: int) -> Iterator[Range]:
    size = _FIRST_PIECE
    while first <= last:
        yield first, min(first + size - 1, last)
        first, size = first + size, 2 * size


def _waiting(
    cursor: Acknowledged, hidden: HiddenRanges, ledger_id: int, span: Range
) -> Iterator[Range]:
    for start, end in between(*span, cursor.deleted_within(ledger_id, *span)):
        yield from between(start, end, hidden.ranges_within(ledger_id, start, end))
