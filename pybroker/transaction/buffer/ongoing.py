"""A transaction on a topic, for statistics."""

from typing import NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId


class OngoingTransaction(NamedTuple):
    """For statistics: which transaction holds readers back, from where, since when."""

    txn_id: TxnId
    first_position: Position | None  # None: nothing of it is durable yet
    opened_at_ms: int


class Marked(NamedTuple):
    """It has ended: where its entries began, and where its marker is."""

    first: Position | None
    marker: Position
