"""Which ledgers retention releases: a pure decision over the ledger list."""

from collections.abc import Sequence
from dataclasses import dataclass

from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class Retention:
    """How long consumed entries stay: 0 = not at all, -1 = forever."""

    time_ms: int = 0
    size_bytes: int = 0


def releasable(
    ledgers: Sequence[LedgerInfo],
    slowest: Position | None,
    retention: Retention,
    now_ms: int,
) -> list[LedgerInfo]:
    """The ledgers that may go, oldest first.

    `slowest` is the lowest mark-delete position of the durable cursors, None if there is none. A
    ledger may go when every cursor has passed it and it is older than the retention time or the log
    is larger than the retention size. The first ledger that stays keeps all later ones.
    """
    released: list[LedgerInfo] = []
    remaining_bytes = sum(info.size_bytes for info in ledgers)
    for info in ledgers:
        if info.closed_at_ms is None or not consumed(info, slowest):
            break
        expired = 0 <= retention.time_ms <= now_ms - info.closed_at_ms
        if not expired and not 0 <= retention.size_bytes < remaining_bytes:
            break
        released.append(info)
        remaining_bytes -= info.size_bytes
    return released


def consumed(info: LedgerInfo, slowest: Position | None) -> bool:
    return slowest is None or slowest >= (info.ledger_id, info.entries - 1)
