"""Bounds the work of all topics in commit order in one turn of the loop: copying, aborting,
deleting.

Each end is short, but any number of them may arrive in one turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from managed_ledger.storage.operations import call_safely

_A_TURN: Final = 200  # ranges of entries, each some 30 µs


class TurnShare:
    def __init__(self) -> None:
        self._left = _A_TURN
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    @property
    def has_room(self) -> bool:
        return self._left > 0

    def spend(self, ranges: int) -> None:
        self._left -= ranges
        self._schedule()

    def when_there_is_room(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn, in the order of these calls."""
        self._waiting.append(go_on)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled, self._left = False, _A_TURN
        for _ in range(len(self._waiting)):
            if not self.has_room:
                return  # spending has scheduled the next turn
            call_safely(self._waiting.popleft())


# The values must not refer to the loop; otherwise it would never be freed.
_share_of: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, TurnShare]] = WeakKeyDictionary()


def turn_share() -> TurnShare:
    """The TurnShare of the running loop."""
    loop = asyncio.get_running_loop()
    share = _share_of.get(loop)
    if share is None:
        share = _share_of[loop] = TurnShare()
    return share
