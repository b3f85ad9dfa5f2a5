"""A topic's log by transactions: how far readers get, what follows, and why they stop.

    lastStablePosition   read_committed readers stop here
    segments             the entries after it: each belongs to one open transaction, or to none

The number of segments is limited; the entries after the last one form another.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.broker.persistent.topic import Topic
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.txn_status import TxnStatus

Stats = dict[str, Any]
MOST_SEGMENTS: Final = 200
_MOST_TRANSACTIONS: Final = 50


class _Range(NamedTuple):
    first: Position
    last: Position
    txn_id: TxnId | None


def segments(topic: Topic) -> list[Stats]:
    """The segments from the last stable position to the last entry, in order and complete."""
    ledger, found = topic.ledger, list[Stats]()
    behind, end = topic.max_read_position, topic.ledger.last_confirmed
    own = sorted(_ranges(topic), key=lambda each: each.first)
    for each in [*own[:MOST_SEGMENTS], None]:
        last_before = end if each is None else min(each.first.before, end)
        if behind < last_before and (entries := ledger.count_between(behind, last_before)):
            found.append(_segment(behind.after, last_before, None, entries))
        if each is None or each.last > end:
            continue
        entries = ledger.count_between(each.first.before, each.last)
        found.append(_segment(each.first, each.last, each.txn_id, entries))
        behind = each.last
    return found


def _ranges(topic: Topic) -> Iterator[_Range]:
    for ongoing in topic.buffer.ongoing(_MOST_TRANSACTIONS):
        for ledger_id, first, last in topic.buffer.ranges_in_log(ongoing.txn_id, MOST_SEGMENTS):
            yield _Range(Position(ledger_id, first), Position(ledger_id, last), ongoing.txn_id)


def _segment(first: Position, last: Position, txn_id: TxnId | None, entries: int) -> Stats:
    return {
        "from": str(first),
        "to": str(last),
        "entries": entries,
        "txnId": None if txn_id is None else str(txn_id),
    }


Find = Callable[[TxnId], TransactionMetadata | None]


def cause(topic: Topic, find: Find, owner_shown: Callable[[str], str], now_ms: int) -> str | None:
    """A sentence that says why readers stop; None if nothing holds them back."""
    oldest = topic.buffer.oldest()
    if oldest is None or oldest.first_position is None:
        return None
    transaction = find(oldest.txn_id)
    since = max(0, now_ms - oldest.opened_at_ms)
    return (
        f"Readers stop {_stop(topic.max_read_position)} because transaction {oldest.txn_id}"
        f"{_whose(transaction, owner_shown)} wrote at {oldest.first_position}, {duration(since)} "
        f"ago, and has not ended{_outlook(transaction, now_ms)}."
    )


def _stop(last: Position) -> str:
    """`last` may precede a ledger's first entry; its entry id is then -1."""
    return f"after {last}" if last.entry_id >= 0 else f"before {last.ledger_id}:0"


def _whose(transaction: TransactionMetadata | None, owner_shown: Callable[[str], str]) -> str:
    if transaction is None or transaction.owner is None:
        return ""
    return f" of {owner_shown(transaction.owner)}"


def _outlook(transaction: TransactionMetadata | None, now_ms: int) -> str:
    if transaction is None:
        return "; its coordinator is not open at the moment"
    if transaction.prepared is not None and transaction.status is TxnStatus.PREPARED:
        age_ms = max(0, now_ms - transaction.prepared.at_ms)
        return f"; it was prepared {duration(age_ms)} ago, and waits for its owner's decision"
    if transaction.status is not TxnStatus.OPEN:
        return f"; it is {transaction.status.name}"
    if transaction.promised_to is not None:
        return f"; it ends with {transaction.promised_to}"
    left_ms = transaction.left_ms(now_ms)
    return "; it has no timeout" if left_ms is None else f"; it has {duration(left_ms)} left"


def duration(ms: int) -> str:
    seconds, minutes = ms // 1000, ms // 60_000
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    if minutes < 1:
        return f"{seconds} s"
    if minutes < 60:
        return f"{minutes} min {seconds % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"
