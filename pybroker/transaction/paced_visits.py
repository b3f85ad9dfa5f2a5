"""Visits of a participant to its open transactions: a limited number per turn."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from managed_ledger.housekeeper import Housekeeper, Visit
from pybroker.base.names import TxnId

# Visiting 100,000 transactions over and over without pauses would take a twentieth of a core.
A_TURN: Final = 1000
EVERY_S: Final = 0.2


class PacedVisits:
    """At most one visit is scheduled at a time: `due`."""

    __slots__ = ("_housekeeper", "due")

    def __init__(self, housekeeper: Housekeeper) -> None:
        self._housekeeper = housekeeper
        self.due: Visit | None = None

    def visit_in(self, delay_s: float, work: Callable[[], None]) -> None:
        """Schedule a visit that calls `work`, unless one is scheduled already."""
        if self.due is None:
            self.due = self._housekeeper.visit_in(delay_s, work)

    def visit(
        self,
        txn_ids: Iterator[TxnId],
        settle: Callable[[TxnId], None],
        all_settled: Callable[[], None],
    ) -> None:
        """Call `settle` for each transaction, a limited number per turn, then `all_settled`, which
        may schedule the next visit. This replaces the scheduled visit.
        """
        self.due = None
        some = list(islice(txn_ids, A_TURN))
        for txn_id in some:
            settle(txn_id)
        if len(some) == A_TURN:
            self.cancel()  # `settle` may have scheduled a visit
            self.visit_in(EVERY_S, partial(self.visit, txn_ids, settle, all_settled))
        else:
            all_settled()

    def cancel(self) -> None:
        if self.due is not None:
            self.due.cancel()
            self.due = None
