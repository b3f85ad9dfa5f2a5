"""What an open transaction has acknowledged on one subscription, for the admin API."""

from dataclasses import dataclass

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.acks_of_transaction import AcksOfTransaction


@dataclass(frozen=True, slots=True)
class PendingAckStats:
    """The acknowledgements of one open transaction on this subscription."""

    txn_id: TxnId
    individual: int
    cumulative_position: Position | None


def stats_of(txn_id: TxnId, held: AcksOfTransaction) -> PendingAckStats:
    individual = len(held.whole) + len(held.indexes)
    last = held.cumulative[-1].last.position if held.cumulative else None
    return PendingAckStats(txn_id, individual, last)
