"""The ends to perform on a topic: aborts as they arrive, commits one by one, in order."""

from collections import deque
from collections.abc import Callable
from functools import partial

from pybroker.base.names import TxnId
from pybroker.transaction.buffer.commit_order.turn_share import turn_share
from pybroker.transaction.txn_status import TxnAction


class EndQueue:
    __slots__ = ("_aborts", "_commits", "_waits")

    def __init__(self) -> None:
        self._aborts: deque[TxnId] = deque()
        self._commits: deque[TxnId] = deque()
        self._waits = False

    def add(self, txn_id: TxnId, action: TxnAction) -> None:
        (self._commits if action is TxnAction.COMMIT else self._aborts).append(txn_id)

    def first(self, with_commits: bool, go_on: Callable[[], None]) -> TxnId | None:
        """The transaction to end next; None if there is none, or if this turn of the loop has done
        enough: then `go_on` is called in a later turn.
        """
        queue = self._aborts or (self._commits if with_commits else None)
        if not queue:
            return None
        if not turn_share().has_room:
            if not self._waits:
                self._waits = True
                turn_share().when_there_is_room(partial(self._turn_has_come, go_on))
            return None
        return queue[0]

    def take_commits(self, most: int) -> list[TxnId]:
        """Removes the commits of one coordinator."""
        taken = [txn_id for txn_id in self._commits if txn_id.most == most]
        self._commits = deque(txn_id for txn_id in self._commits if txn_id.most != most)
        return taken

    def begin(self, ranges: int) -> None:
        """Remove the first transaction: it ends now. `ranges`: the number of its ranges of
        entries.
        """
        (self._aborts or self._commits).popleft()
        turn_share().spend(1 + ranges)

    def _turn_has_come(self, go_on: Callable[[], None]) -> None:
        self._waits = False
        go_on()
