"""A transaction that has not ended on a topic, as stats tell of it."""

from typing import NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId


class OngoingTransaction(NamedTuple):
    """For stats: who holds readers back, from where, since when."""

    txn_id: TxnId
    first_position: Position | None  # None: nothing of it is durable yet
    opened_at_ms: int
