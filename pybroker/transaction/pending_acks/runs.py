"""Runs of consecutive entries, which the cursor acknowledges at once."""

from collections.abc import Iterable, Iterator

from managed_ledger.position import Position


def runs(positions: Iterable[Position]) -> Iterator[tuple[int, int, int]]:
    """Runs of consecutive entries, in the order of `positions`: ledger, first, last."""
    ledger_id, first, last = -1, 0, -1
    for position in positions:
        if position.entry_id == last + 1 and position.ledger_id == ledger_id:
            last += 1
            continue
        if ledger_id >= 0:
            yield ledger_id, first, last
        ledger_id, first = position
        last = first
    if ledger_id >= 0:
        yield ledger_id, first, last
