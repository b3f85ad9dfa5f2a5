"""What statistics and the admin API tell of a topic's transactions."""

from dataclasses import dataclass
from typing import NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId


class OngoingTransaction(NamedTuple):
    """An open transaction: where its entries begin, and since when it is open."""

    txn_id: TxnId
    first_position: Position | None  # None: none of its entries is durable yet
    opened_at_ms: int


class Marked(NamedTuple):
    """An ended transaction: the position of its first entry, and that of its marker."""

    first: Position | None
    marker: Position


@dataclass(slots=True)
class BufferTimes:
    """When a transaction buffer was recovered, and when it last wrote a snapshot of itself.

    Milliseconds since 1970; 0 means never.
    """

    recovery_began: int = 0
    recovered: int = 0
    snapshot: int = 0
