"""What the list remembers of ledgers that ended empty, when there was no other ledger.

An empty ledger leaves the list without a trace, as a ledger does whose entries were deleted. So
whoever noted a position in it could not tell later whether something came after it and was deleted.
Therefore the list keeps a property, `FROM-FIRST`: all ledgers from FROM on were empty, up to FIRST.
It holds while FIRST is the first ledger of the list.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from managed_ledger.ledger_metadata import LedgerInfo, LedgerList
from managed_ledger.position import Position

EMPTY_LEDGERS: Final = "managed-ledger.empty-ledgers"  # a property


def noted_empty(found: LedgerList, first_id: int) -> dict[str, str]:
    """The properties of the next list if all ledgers of this one were empty; it begins with
    `first_id`.
    """
    oldest = _empty_from(found.ledgers[0].ledger_id, found.properties)
    return {**found.properties, EMPTY_LEDGERS: f"{oldest}-{first_id}"}


def has_all_after(
    position: Position, ledgers: Sequence[LedgerInfo], properties: Mapping[str, str]
) -> bool:
    """Whether every entry that was ever stored after `position` is there. False also if nobody
    knows. Retention deletes the oldest first, so where an older ledger is, a missing one was empty.
    """
    return _empty_from(ledgers[0].ledger_id, properties) <= position.ledger_id


def _empty_from(first_id: int, properties: Mapping[str, str]) -> int:
    """The oldest ledger that is known to have been empty, as all after it; else the first one."""
    oldest, _, first = properties.get(EMPTY_LEDGERS, "").partition("-")
    return int(oldest) if first == str(first_id) else first_id
