"""Messages that the active consumer was given while another consumer's transaction held them.

A transaction's cumulative acknowledgement does not keep messages from the next consumer: see
`pending_acks.state`. If that transaction commits, it has consumed them. The next consumer may have
processed them, too, and does not know: its own cumulative acknowledgement would cover them, and two
committed transactions would have consumed the same messages. So once the first one has committed,
the consumer must have everything redelivered before it acknowledges in a transaction.
"""

from managed_ledger.position import Position
from pybroker.base.names import TxnId


class GivenUnder:
    """Lasts until everything unacknowledged is delivered again."""

    __slots__ = ("_begin", "holder", "is_committed")

    def __init__(self, holder: TxnId, begin: Position) -> None:
        """`holder` held messages cumulatively when delivery began at `begin`."""
        self.holder = holder
        self.is_committed = False
        self._begin = begin

    def committed(self, txn_id: TxnId, given_to: Position) -> None:
        """`txn_id` has committed; the consumer was given everything before `given_to`."""
        if txn_id == self.holder and given_to > self._begin:
            self.is_committed = True
