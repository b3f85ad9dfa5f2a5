"""A participant's visits to its open transactions: some in one turn, the others later."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from managed_ledger.housekeeper import Housekeeper, Visit
from pybroker.base.names import TxnId

# Looking at each of 100,000 again and again without a pause would take a twentieth of a core.
A_TURN: Final = 1000
EVERY_S: Final = 0.2


class PacedVisits:
    """At most one visit is `due` at a time."""

    __slots__ = ("_housekeeper", "due")

    def __init__(self, housekeeper: Housekeeper) -> None:
        self._housekeeper = housekeeper
        self.due: Visit | None = None

    def visit_in(self, delay_s: float, work: Callable[[], None]) -> None:
        """Unless a visit is due."""
        if self.due is None:
            self.due = self._housekeeper.visit_in(delay_s, work)

    def visit(
        self,
        txn_ids: Iterator[TxnId],
        settle: Callable[[TxnId], None],
        all_settled: Callable[[], None],
    ) -> None:
        """Instead of the visit that is due: call `settle` for each, and then `all_settled`, which
        may ask for the next visit.
        """
        self.due = None
        some = list(islice(txn_ids, A_TURN))
        for txn_id in some:
            settle(txn_id)
        if len(some) == A_TURN:
            self.cancel()  # one that was asked for meanwhile
            self.visit_in(EVERY_S, partial(self.visit, txn_ids, settle, all_settled))
        else:
            all_settled()

    def cancel(self) -> None:
        if self.due is not None:
            self.due.cancel()
            self.due = None
