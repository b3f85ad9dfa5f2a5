"""Puts ends of transactions into effect: short ones at once, long ones in pieces.

Between two pieces, each message that the transaction held individually is still held, or is finally
acknowledged or released. All of these are consistent with a transaction that is ending: a held
message is not delivered, and an attempt to acknowledge it is refused because the transaction has
not ended yet. So other work may read and change the state in between. Two operations wait for the
last piece (`settled`): replacing the log, from which a restart would apply the rest, and moving the
cursor back.

Many short ends may arrive in one turn: beyond APPLIED_A_TURN entries in total, they wait, too.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import Final

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.records import Held
from pybroker.transaction.pending_acks.state import PendingAckState

APPLIED_A_TURN: Final = 1000  # entries of short ends, and as many of long ones
PIECE: Final = 500

Pieces = Iterator[int]  # each item is a number of entries
Restored = Callable[[Mapping[Position, Held]], None]

log = logging.getLogger(__name__)


def commit_in_pieces(state: PendingAckState, txn_id: TxnId) -> Pieces:
    while count := state.commit_some(txn_id, PIECE):
        yield count
    state.commit(txn_id)


def abort_in_pieces(state: PendingAckState, txn_id: TxnId, restored: Restored) -> Pieces:
    """Release the messages that the transaction holds individually, in the order of the log."""
    positions = state.transactions[txn_id].positions()
    runs: list[list[Position]] = []
    while run := sorted(islice(positions, PIECE), reverse=True):
        runs.append(run)
        yield len(run)
    ascending = merge(*map(_taken_from, runs))
    while some := list(islice(ascending, PIECE)):
        restored(state.drop_some(txn_id, some))
        yield len(some)
    state.drop(txn_id)


def _taken_from(descending: list[Position]) -> Iterator[Position]:
    """Frees the positions step by step: freeing all of them at once would also take long."""
    while descending:
        yield descending.pop()


class _End:
    __slots__ = ("over", "pieces", "settled")

    def __init__(self, pieces: Pieces, over: Callable[[], None]) -> None:
        self.pieces = pieces
        self.over = over
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Applying:
    """Applies the ends of transactions on one subscription."""

    __slots__ = ("_at_once", "_has_turn", "_long")

    def __init__(self) -> None:
        self._long: deque[_End] = deque()  # served in rotation, one piece each
        self._at_once = 0  # entries in this turn, plus up to a tenth of a turn's from before
        self._has_turn = False  # `_turn` is scheduled

    def fits(self, entries: int) -> bool:
        """Whether this many entries can be applied at once. If so, the caller must do it now."""
        at_once = self._at_once + entries
        if at_once > APPLIED_A_TURN:
            return False
        self._at_once = at_once
        if 10 * at_once > APPLIED_A_TURN:
            self._take_turn()
        return True

    def start(self, pieces: Pieces, over: Callable[[], None]) -> None:
        """Apply an end that does not fit; `over` is called when all of it is in effect."""
        self._long.append(_End(pieces, over))
        self._take_turn()

    async def settled(self) -> None:
        """Wait until all ends that have begun are in effect."""
        if self._long:
            await asyncio.wait([end.settled for end in self._long])

    def _take_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn, self._at_once, applied = False, 0, 0
        while self._long and applied < APPLIED_A_TURN:
            applied += self._go_on(self._long.popleft())
        if self._long:
            self._take_turn()

    def _go_on(self, end: _End) -> int:
        try:
            if entries := next(end.pieces, 0):
                self._long.append(end)
                return entries
            end.over()
        except Exception:  # an error in one end must not affect the others
            log.exception(
                "The end of a transaction is in effect only in part; a restart completes it"
            )
        end.settled.set_result(None)
        return 0
